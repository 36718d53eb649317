package epoch

import (
	"fmt"
	"strconv"
	"strings"
)

// Approval is how a person's approval to take a child over from a mark is written down. It
// has the number, so that it is used up by the take-over: should the same process have the
// child again, as because another person corrected the approval, its mark has a larger one.
func (m Mark) Approval() string { return fmt.Sprintf("%d/%s", m.Epoch, m.Holder) }

// Approves reports whether an approval is for a mark. lasts says that it is for any other mark of
// the holder as well: earlier programs left the number out, and whoever takes the child over by
// such an approval has to take it off.
func Approves(approval string, from Mark) (approved, lasts bool) {
	if number, holder, found := strings.Cut(approval, "/"); found {
		if most, err := strconv.ParseInt(number, 10, 64); err == nil {
			return holder == from.Holder && from.Epoch <= most, false
		}
	}
	return approval != "" && approval == from.Holder, true
}
