package forecast

import (
	"encoding/json"
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestWays: of one Rollout, or of none, the JSON is what it was before there were ways.
func TestWays(t *testing.T) {
	of := func(name string) v1alpha1.Rollout {
		r := v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.Spec.Waves = []v1alpha1.RolloutWave{{Name: name + "-canary", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}}, {Name: name + "-rest"}}
		return r
	}
	rollouts := []v1alpha1.Rollout{of("late"), of("early")}
	canary := map[string]string{"canary": "true"}
	type cluster struct {
		mover  rollout.Mover
		labels map[string]string
	}
	early, late := rollout.Mover{Name: "early"}, rollout.Mover{Name: "late"}
	both := rollout.Mover{Conflict: []string{"early", "late"}}
	for _, tt := range []struct {
		reason   string
		clusters []cluster
		want     string
	}{
		{"none is governed", []cluster{{}, {labels: canary}}, `{}`},
		{"all are of one", []cluster{{early, canary}, {early, nil}, {early, nil}},
			`{"rollout":"early","waves":[{"name":"early-canary","clusters":1,"maxConcurrent":"0"},{"name":"early-rest","clusters":2,"maxConcurrent":"0"}]}`},
		{"one of them is of none", []cluster{{}, {early, nil}},
			`{"rollout":"early","waves":[{"name":"early-rest","clusters":1,"maxConcurrent":"0"}],"ways":[` +
				`{"rollout":"early","clusters":1,"waves":[{"name":"early-rest","clusters":1,"maxConcurrent":"0"}]},{"clusters":1}]}`},
		{"each has the waves of its own", []cluster{{late, nil}, {early, canary}, {early, canary}},
			`{"rollout":"early","waves":[{"name":"early-canary","clusters":2,"maxConcurrent":"0"}],"ways":[` +
				`{"rollout":"early","clusters":2,"waves":[{"name":"early-canary","clusters":2,"maxConcurrent":"0"}]},` +
				`{"rollout":"late","clusters":1,"waves":[{"name":"late-rest","clusters":1,"maxConcurrent":"0"}]}]}`},
		{"two move it, and so none", []cluster{{both, nil}}, `{"ways":[{"conflict":["early","late"],"clusters":1}]}`},
	} {
		w, owner := waysOf(rollouts), difference.Owner{}
		for _, c := range tt.clusters {
			w.take(c.mover, c.labels)
		}
		w.into(&owner)
		got, err := json.Marshal(struct {
			Rollout string            `json:"rollout,omitempty"`
			Waves   []difference.Wave `json:"waves,omitempty"`
			Ways    []difference.Way  `json:"ways,omitempty"`
		}{owner.Rollout, owner.Waves, owner.Ways})
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %v\n got %s\nwant %s", tt.reason, err, got, tt.want)
		}
	}
}

// TestFetchHidesLogin: what a failed fetch says has no login that stands in the URL.
func TestFetchHidesLogin(t *testing.T) {
	repository := &sourcev1.GitRepository{}
	repository.Spec.URL = "http://bot:hidden-word@127.0.0.1:1/x"
	f := &forecast{Options: Options{Mirrors: source.NewMirrors(t.TempDir(), 1<<20)}, repository: repository}
	if _, err := f.fetch(t.Context(), strings.Repeat("a", 40)); err == nil || strings.Contains(err.Error(), "hidden-word") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a server that is not there: %v", err)
	}
}
