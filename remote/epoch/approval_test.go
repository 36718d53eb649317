package epoch

import "testing"

func TestApproves(t *testing.T) {
	for name, tc := range map[string]struct {
		approval        string
		from            Mark
		approved, lasts bool
	}{
		"Shown":         {approval: Mark{Epoch: 7, Holder: "a"}.Approval(), from: Mark{Epoch: 7, Holder: "a"}, approved: true},
		"Other":         {approval: "7/a", from: Mark{Epoch: 7, Holder: "b"}},
		"Earlier":       {approval: "7/a", from: Mark{Epoch: 6, Holder: "a"}, approved: true}, // another layer's
		"Again":         {approval: "7/a", from: Mark{Epoch: 9, Holder: "a"}},                 // it took the child over since
		"Slash":         {approval: "7/a/b", from: Mark{Epoch: 7, Holder: "a/b"}, approved: true},
		"NoNumber":      {approval: "a", from: Mark{Epoch: 9, Holder: "a"}, approved: true, lasts: true},
		"NoNumberSlash": {approval: "a/b", from: Mark{Epoch: 9, Holder: "a/b"}, approved: true, lasts: true},
		"None":          {from: Mark{Epoch: 7}, lasts: true},
	} {
		t.Run(name, func(t *testing.T) {
			if approved, lasts := Approves(tc.approval, tc.from); approved != tc.approved || lasts != tc.lasts {
				t.Errorf("Approves(%q, %v) = %t, %t", tc.approval, tc.from, approved, lasts)
			}
		})
	}
}
