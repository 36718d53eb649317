package credential

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// journal is what the agent remembers of one Credential, in a Secret of its own: the logins
// that may have something leased. A login is in it before anything is asked in it.
type journal struct {
	// Format of what is written.
	Format int `json:"format"`
	// Next is the number of the next credential.
	Next int64 `json:"next"`
	// Entries in the order of their numbers.
	Entries []entry `json:"entries,omitempty"`
}

// entry is one login.
type entry struct {
	Number int64 `json:"number"`
	// Address, Namespace and CA of the server, which the Credential may name no more.
	Address   string `json:"address"`
	Namespace string `json:"namespace,omitempty"`
	CA        []byte `json:"ca,omitempty"`
	// Token of the login.
	Token        string    `json:"token"`
	Batch        bool      `json:"batch,omitempty"`
	Extensible   bool      `json:"extensible,omitempty"`
	LoginExpires time.Time `json:"loginExpires,omitzero"`
	// Lease is what was leased; empty while nothing was.
	Lease     string        `json:"lease,omitempty"`
	Renewable bool          `json:"renewable,omitempty"`
	Life      time.Duration `json:"life,omitempty"`
	RenewAt   time.Time     `json:"renewAt,omitzero"`
	Expires   time.Time     `json:"expires,omitzero"`
	// Gone: the server knows the lease no more.
	Gone bool `json:"gone,omitempty"`
}

const (
	journalFormat = 1
	journalKey    = "leases.json"
	// mostJournal bounds what is read of a journal.
	mostJournal = 512 << 10
)

var errFormat = errors.New("it was written by a later version")

// parseJournal reads a journal. One that cannot be read is an error: what it has would never
// be revoked.
func parseJournal(text []byte) (*journal, error) {
	if len(text) > mostJournal {
		return nil, errors.New("it is too large")
	}
	j := &journal{}
	if err := json.Unmarshal(text, j); err != nil {
		return nil, errors.New("it is no JSON of ours") // the error may quote a token
	}
	switch {
	case j.Format > journalFormat:
		return nil, errFormat
	case j.Format != journalFormat || j.Next < 1:
		return nil, errors.New("it is no JSON of ours")
	case len(j.Entries) > 2*MostLeases:
		return nil, fmt.Errorf("it has %d entries", len(j.Entries))
	}
	for i, e := range j.Entries {
		if e.Number < 1 || e.Number >= j.Next || i > 0 && e.Number <= j.Entries[i-1].Number || e.Token == "" {
			return nil, errors.New("its entries are in disorder")
		}
	}
	return j, nil
}

func (j *journal) encode() ([]byte, error) {
	j.Format = journalFormat
	return json.Marshal(j)
}

func (j *journal) find(number int64) *entry {
	for i := range j.Entries {
		if j.Entries[i].Number == number {
			return &j.Entries[i]
		}
	}
	return nil
}

func (j *journal) drop(number int64) {
	j.Entries = slices.DeleteFunc(j.Entries, func(e entry) bool { return e.Number == number })
}

// leases are the entries as facts.
func (j *journal) leases(notBefore map[int64]time.Time) []Lease {
	var all []Lease
	for _, e := range j.Entries {
		all = append(all, Lease{
			Number: e.Number, ID: e.Lease, Renewable: e.Renewable, RenewAt: e.RenewAt, Expires: e.Expires, LoginExpires: e.LoginExpires,
			Gone: e.Gone, Batch: e.Batch, NotBefore: notBefore[e.Number],
		})
	}
	return all
}
