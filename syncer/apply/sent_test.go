package apply

import (
	"fmt"
	"slices"
	"testing"
)

// TestSentBytes: what is recorded of what was sent is what a later process knows.
func TestSentBytes(t *testing.T) {
	s := newSweeper(t)
	sent := s.pass(t, false).Sent
	if len(sent) == 0 {
		t.Fatal("nothing was sent")
	}
	for i := range sent {
		sent[i].seen = seen{} // in which state it was is not recorded
	}
	all := sent.Bytes()
	if got, err := ParseSent(all); err != nil || !slices.Equal(got, sent) || len(all) != SentSize*len(sent) {
		t.Errorf("ParseSent() of %d bytes = %v, %v, want %v", len(all), got, err, sent)
	}
	twice := slices.Concat(all[:SentSize], all[:SentSize])
	for reason, broken := range map[string][]byte{"it is cut": all[1:], "it has an object twice": twice, "it is out of order": slices.Concat(all[SentSize:2*SentSize], all[:SentSize])} {
		if got, err := ParseSent(broken); err == nil {
			t.Errorf("%s: %s", reason, fmt.Sprint(got))
		}
	}
	if got, err := ParseSent(nil); err != nil || len(got) != 0 {
		t.Errorf("ParseSent(nil) = %v, %v", got, err)
	}
}
