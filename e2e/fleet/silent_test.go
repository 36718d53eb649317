package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// intervals are three observe intervals of an agent that nobody told another one, after which
// what was reported is old.
const intervals = 3 * 45 * time.Second

// silentMaster stops a master in its tracks, its API server and all that runs there: what is known
// of the tiers below it is old from then on. The tree, the page and why say so, and since when, and
// none of them says that something below is ready.
func (f *fleet) silentMaster(t *testing.T) {
	staging := f.tiers["staging"]
	if err := staging.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	thawed := false
	thaw := func() {
		if !thawed {
			thawed = true
			if err := staging.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
	}
	defer thaw()
	master := stage.Namespace + "/staging"
	scenario.Eventually(t, intervals, "nothing below staging reads ready in the tree, and since when is said", func(ctx context.Context) error {
		root, err := f.tree(ctx)
		if err != nil {
			return err
		}
		for _, child := range root.Children {
			if child.Name != master {
				continue
			}
			if len(child.Children) == 0 {
				return fmt.Errorf("no cluster is below staging: %+v", child)
			}
			return silent(child)
		}
		return fmt.Errorf("staging is not in the tree: %+v", root)
	})
	t.Logf("the tree said so %.1f s after it stopped", time.Since(stopped).Seconds())

	path := master + ">" + stage.Namespace + "/gamma"
	out, err := f.Run(t.Context(), "cascade", "why", path, "-o", "json", "--kubeconfig", f.MoM.Kubeconfig())
	var answer struct {
		Chains [][]struct{ Kind, Name, Reason, Tier string }
	}
	if decode := json.Unmarshal([]byte(out), &answer); decode != nil {
		t.Fatalf("%v, %v: %s", decode, err, out)
	}
	if len(answer.Chains) == 0 {
		t.Fatalf("why says nothing of %s: %s", path, out)
	}
	for _, chain := range answer.Chains {
		// Its provider finds out as well that it does not answer, if it has the time.
		if root := chain[0]; root.Kind != "Child" && root.Kind != "LocalControlPlane" || root.Name != "staging" || root.Tier != "" {
			t.Errorf("why begins with %+v, want staging of this tier, the Child or its control plane: %s", root, out)
		}
	}
	f.pageSays(t, path)

	thaw()
	scenario.Eventually(t, scenario.BringUp, "the tree shows staging and what is below it ready again", func(ctx context.Context) error {
		root, err := f.tree(ctx)
		if err != nil {
			return err
		}
		for tier, ready := range root.tiers("") {
			if strings.Contains(tier, "staging") && !ready {
				return fmt.Errorf("%s is not ready", tier)
			}
		}
		return nil
	})
}

// silent checks that a tier and all below it are not ready, and say since when.
func silent(n node) error {
	if n.Ready || n.Since.IsZero() {
		return fmt.Errorf("%s is ready (%t), %s since %s", n.Name, n.Ready, n.Reason, n.Since)
	}
	for _, child := range n.Children {
		if child.Heard == nil {
			return fmt.Errorf("%s is %s, and does not say when it was heard of", child.Name, child.Reason)
		}
		if err := silent(child); err != nil {
			return err
		}
	}
	return nil
}

// tree is what cascade tree prints at the top.
func (f *fleet) tree(ctx context.Context) (node, error) {
	out, err := f.Run(ctx, "cascade", "tree", "-o", "json", "--kubeconfig", f.MoM.Kubeconfig())
	if err != nil {
		return node{}, err
	}
	root := node{}
	if err := json.Unmarshal([]byte(out), &root); err != nil {
		return node{}, fmt.Errorf("cannot parse the tree: %w: %s", err, out)
	}
	return root, nil
}

// pageSays reads the page of what was not heard of, as cascade web serves it at the top: the
// cluster is there, with how long ago.
func (f *fleet) pageSays(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	program, err := f.Program("cascade")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program, "web", "--kubeconfig", f.MoM.Kubeconfig())
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // it ends with the context
	defer cancel()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`http://\S+`).FindString(line)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"?state=Stale", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(body); response.StatusCode != http.StatusOK || !strings.Contains(text, "path="+url.QueryEscape(path)) || !strings.Contains(text, "Stale") {
		t.Errorf("the page, %s, says not that %s is stale:\n%s", response.Status, path, text)
	}
}
