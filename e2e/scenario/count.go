package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// MetricsAddress is where the agent of a tier serves metrics, as host and port.
func MetricsAddress(tier *stage.Tier) (string, error) {
	pid := tier.Agent()
	if pid == 0 {
		return "", errors.New("the agent has no process")
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", err
	}
	_, rest, found := bytes.Cut(line, []byte("--metrics-addr="))
	if !found {
		return "", fmt.Errorf("the agent serves no metrics: %q", line)
	}
	address, _, _ := bytes.Cut(rest, []byte{0})
	return string(address), nil
}

// AgentMetrics are what the agent of a tier serves to Prometheus.
func AgentMetrics(ctx context.Context, tier *stage.Tier) ([]byte, error) {
	address, err := MetricsAddress(tier)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// Passes is how often the agent of a tier has reconciled each object of a kind, by
// its own metrics.
func Passes(ctx context.Context, tier *stage.Tier, kind, ns string) (map[string]int, error) {
	text, err := AgentMetrics(ctx, tier)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^gotk_reconcile_duration_seconds_count{kind="`+kind+`",name="([^"]*)",namespace="`+ns+`"} (\S+)$`).FindAllSubmatch(text, -1) {
		if counts[string(m[1])], err = strconv.Atoi(string(m[2])); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// Served is what the API server has served so far of some resources, by verb and
// resource, whoever asked.
func Served(t *testing.T, kube *kubernetes.Clientset, resources ...string) map[string]int {
	t.Helper()
	text, err := kube.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatalf("cannot read the API server's metrics: %v", err)
	}
	counts := map[string]int{}
	label := func(line, name string) string {
		_, rest, _ := strings.Cut(line, name+`="`)
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || label(line, ",subresource") != "" {
			continue
		}
		verb, resource := label(line, ",verb"), label(line, ",resource")
		// A watch ends after some minutes and is begun anew, whatever happens.
		if verb == "WATCH" || !slices.Contains(resources, resource) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			t.Fatalf("cannot parse %q: %v", line, err)
		}
		counts[verb+" "+resource] += int(n)
	}
	return counts
}
