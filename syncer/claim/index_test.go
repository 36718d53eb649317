package claim

import (
	"fmt"
	"runtime"
	"testing"
	"weak"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestIndexKeepsNoLists: each update has a list of all owners, of which the index keeps those that
// changed. A list that it kept for the sake of one of them would stay as long as that one does.
func TestIndexKeepsNoLists(t *testing.T) {
	const many = 50
	versions := make([]int, many)
	x := &index{}
	var lists []weak.Pointer[kustomizev1.Kustomization]
	for round := range many {
		versions[round]++
		items := make([]kustomizev1.Kustomization, many)
		owners := make([]client.Object, many)
		for i := range items {
			items[i].Namespace, items[i].Name, items[i].ResourceVersion = "apps", fmt.Sprint("k", i), fmt.Sprint(versions[i])
			owners[i] = &items[i]
		}
		x.update(owners)
		lists = append(lists, weak.Make(&items[0]))
	}
	runtime.GC()
	kept := 0
	for _, list := range lists {
		if list.Value() != nil {
			kept++
		}
	}
	if kept > 1 { // the last one may be on the stack still
		t.Errorf("%d of %d lists are kept in memory", kept, many)
	}
	runtime.KeepAlive(x)
}
