package hint

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestPolled: what a source found by looking is told once, and not what a hint brought, what
// was there when the process began, or what another process reconciles.
func TestPolled(t *testing.T) {
	commit := strings.Repeat("a", 40)
	git := func(name string) Source {
		return Source{"GitRepository", types.NamespacedName{Namespace: "apps", Name: name}}
	}
	const url = "https://git.example/"
	for name, tc := range map[string]struct {
		reason string
		do     func(p *Polled)
		leads  bool
		want   []Told
	}{
		"First":    {"what was there before", func(p *Polled) { p.Found(git("a"), "main@sha1:"+commit) }, true, nil},
		"Same":     {"nothing new", func(p *Polled) { p.Found(git("a"), "1"); p.Found(git("a"), "1") }, true, nil},
		"New":      {"a commit", func(p *Polled) { p.Found(git("a"), "1"); p.Found(git("a"), "main@sha1:"+commit) }, true, []Told{{url + "a", commit}}},
		"NoCommit": {"an image has none", func(p *Polled) { p.Found(git("a"), "1"); p.Found(git("a"), "latest@sha256:"+commit) }, true, []Told{{url + "a", ""}}},
		"Twice": {"two commits in a moment", func(p *Polled) {
			p.Found(git("a"), "1")
			p.Found(git("a"), "2")
			p.Found(git("a"), "main@sha1:"+commit)
		}, true, []Told{{url + "a", commit}}},
		"Heard": {"a webhook came before, with this commit", func(p *Polled) {
			p.Found(git("a"), "1")
			p.Heard([]Hint{{Repository: Repository(url + "a.git"), Revision: commit}})
			p.Found(git("a"), "main@sha1:"+commit)
			time.Sleep(2 * heardFor)
		}, true, nil},
		"HeardWithout": {"a webhook without a commit may have brought it: not yet", func(p *Polled) {
			p.Found(git("a"), "1")
			p.Heard([]Hint{{Repository: Repository(url + "a")}})
			p.Found(git("a"), "2")
		}, true, nil},
		"HeardOther": {"a webhook of another branch: what it did not bring is told later", func(p *Polled) {
			p.Found(git("a"), "1")
			p.Heard([]Hint{{Repository: Repository(url + "a"), Revision: strings.Repeat("b", 40)}})
			p.Found(git("a"), "main@sha1:"+commit)
			time.Sleep(heardFor)
		}, true, []Told{{url + "a", commit}}},
		"SoonAgain": {"the next commit, before half a minute is over", func(p *Polled) {
			p.Found(git("a"), "1")
			p.Found(git("a"), "2")
			time.Sleep(heardFor / 2)
			p.Found(git("a"), "main@sha1:"+commit)
			time.Sleep(heardFor)
		}, true, []Told{{url + "a", ""}, {url + "a", commit}}},
		"TwoBranches": {"two sources, each with a commit of its own", func(p *Polled) {
			for _, revision := range []string{"1", "main@sha1:" + commit} {
				p.Found(git("a"), revision)
			}
			p.Found(git("a.git"), "1")
			p.Found(git("a.git"), "dev@sha1:"+strings.Repeat("b", 40))
		}, true, []Told{{url + "a", commit}, {url + "a", strings.Repeat("b", 40)}}},
		"WhileAway": {"a commit that came before the process did", func(p *Polled) { p.Found(git("had"), "main@sha1:"+commit) }, true, []Told{{url + "had", commit}}},
		"AsBefore":  {"the status has it", func(p *Polled) { p.Found(git("had"), "main@sha1:had") }, true, nil},
		"HeardLate": {"the note of the webhook comes after the fetch", func(p *Polled) {
			p.Found(git("a"), "1")
			p.Found(git("a"), "main@sha1:"+commit)
			time.Sleep(polledMoment / 2)
			p.Heard([]Hint{{Repository: Repository(url + "a"), Revision: commit}})
			time.Sleep(2 * heardFor)
		}, true, nil},
		"HeardOfAnother": {"a webhook of another repository", func(p *Polled) {
			p.Heard([]Hint{{Repository: Repository(url + "b")}})
			p.Found(git("a"), "1")
			p.Found(git("a"), "2")
		}, true, []Told{{url + "a", ""}}},
		"HeardBefore": {"a webhook of long ago", func(p *Polled) {
			p.Heard([]Hint{{Repository: Repository(url + "a")}})
			p.Found(git("a"), "1")
			time.Sleep(heardFor)
			p.Found(git("a"), "2")
		}, true, []Told{{url + "a", ""}}},
		"TwoSources": {"two sources of one repository", func(p *Polled) {
			for _, revision := range []string{"1", "2"} {
				p.Found(git("a"), revision)
				p.Found(git("a.git"), revision)
			}
		}, true, []Told{{url + "a", ""}}},
		"NoURL":     {"a source that is not passed on", func(p *Polled) { p.Found(git(""), "1"); p.Found(git(""), "2") }, true, nil},
		"StandsBy":  {"a replica that does not lead", func(p *Polled) { p.Found(git("a"), "1"); p.Found(git("a"), "2") }, false, nil},
		"NoSources": {"nothing happens", func(*Polled) {}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var told []Told
				p := NewPolled(PolledOptions{
					URL: func(_ context.Context, s Source) string {
						if s.Name == "" {
							return ""
						}
						return url + s.Name
					},
					Had: func(s Source) string {
						if s.Name == "had" {
							return "main@sha1:had"
						}
						return ""
					},
					Publish: func(_ context.Context, all []Told) { mu.Lock(); defer mu.Unlock(); told = append(told, all...) },
					Leads:   func() bool { return tc.leads }, Now: time.Now,
				})
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); _ = p.Start(ctx) }()
				tc.do(p)
				time.Sleep(2 * polledMoment)
				synctest.Wait()
				stop()
				<-ended
				for i := range told {
					told[i].URL = strings.TrimSuffix(told[i].URL, ".git")
				}
				slices.SortStableFunc(told, func(a, b Told) int { return strings.Compare(a.Revision, b.Revision) })
				if !slices.Equal(told, tc.want) {
					t.Errorf("%s: told %v, want %v", tc.reason, told, tc.want)
				}
			})
		})
	}
}
