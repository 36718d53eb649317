package page

import (
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
)

// heldPage is what waits for a person.
type heldPage struct {
	Items  []heldView
	Paging paging
}

type heldView struct {
	Object, Reason, Message string
	Since                   moment
	Commands                []string
	Why                     linkView
}

func heldOf(f Facts, q Query, now time.Time) *heldPage {
	v := &heldPage{}
	shown, p := part(held.Of(heldFacts(f)), q.Page, maxRows/2, q.at(Held))
	v.Paging = p
	for _, item := range shown {
		view := heldView{Object: name(item.Object()), Reason: item.Reason, Message: message(item.Message), Since: momentOf(item.Since, now)}
		view.Why = whyObject("", item.Kind+"/"+item.Namespace+"/"+item.Name, q)
		for _, command := range item.Commands {
			view.Commands = append(view.Commands, exact(command, describe(strings.ToLower(item.Kind), item.Namespace, item.Name)))
		}
		v.Items = append(v.Items, view)
	}
	return v
}

// exact is a command that does what it looks like, or the one that shows more: half a
// command would do something else, and a branch may be named so that it reads otherwise.
func exact(command, instead string) string {
	if len(command) > maxCommand || strings.ContainsFunc(command, wording.Commands) {
		return instead
	}
	return command
}
