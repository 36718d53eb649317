package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// browser is one tab of Chromium, which reaches nothing but the loopback.
type browser struct {
	ctx context.Context
	axe string

	mu       sync.Mutex
	requests []string
	dialogs  []string
}

const patience = time.Minute

func startBrowser(t *testing.T) *browser {
	t.Helper()
	axe, err := os.ReadFile(scenario.Path(t, "bin", "axe.min.js"))
	if err != nil {
		t.Fatalf("cannot read axe-core: %v; make bin/axe.min.js", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1400, 1000),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"))
	b := &browser{axe: string(axe)}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(b.note))
	t.Cleanup(cancel)
	b.ctx = ctx
	if err := chromedp.Do(ctx, call(network.Enable, network.EnableParams{})); err != nil {
		t.Fatalf("cannot start chromium: %v", err)
	}
	return b
}

// call is a command of the debugging protocol whose answer does not matter.
func call[P any](command cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *page.EventJavascriptDialogOpening:
		b.dialogs = append(b.dialogs, e.Message)
	}
}

// noted are the requests and dialogs since it was asked last.
func (b *browser) noted() (requests, dialogs []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests, dialogs, b.requests, b.dialogs = b.requests, b.dialogs, nil, nil
	return requests, dialogs
}

func (b *browser) do(t *testing.T, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// evaluate runs a script of the test, not of the page.
func evaluate[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("cannot evaluate %.80s: %v", script, err)
	}
	return value
}

func (b *browser) open(t *testing.T, url string) {
	t.Helper()
	b.do(t, "cannot open "+url, chromedp.Navigate(url))
}

// text of the page, as the document has it.
func (b *browser) text(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.OuterHTML(chromedp.CSS("#main")))
	if err != nil {
		t.Fatalf("cannot read the page: %v", err)
	}
	return text
}

// scripts switches the scripts of pages on or off.
func (b *browser) scripts(t *testing.T, on bool) {
	t.Helper()
	b.do(t, "cannot switch scripts", call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}))
}

// colours are those that a person prefers: light or dark.
func (b *browser) colours(t *testing.T, scheme string) {
	t.Helper()
	b.do(t, "cannot choose colours", call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}))
}

// hindrances are what axe-core finds that is serious or critical.
func (b *browser) hindrances(t *testing.T) []string {
	t.Helper()
	evaluate[bool](t, b, b.axe+"\n;true")
	text := evaluate[string](t, b, `axe.run(document).then(r => JSON.stringify(r.violations.map(v =>
		({id: v.id, impact: v.impact, at: v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary)}))))`)
	var found []struct {
		ID, Impact string
		At         []string
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatal(err)
	}
	var serious []string
	for _, v := range found {
		line := fmt.Sprintf("%s (%s): %s", v.ID, v.Impact, strings.Join(v.At, "; "))
		if v.Impact == "serious" || v.Impact == "critical" {
			serious = append(serious, line)
		} else {
			t.Logf("axe-core: %.300s", line)
		}
	}
	return serious
}

// picture writes what the window shows below bin/pages.
func (b *browser) picture(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	image, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatalf("cannot take a picture: %v", err)
	}
	dir := scenario.Path(t, "bin", "pages")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), image, 0o644); err != nil {
		t.Fatal(err)
	}
}
