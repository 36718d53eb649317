// Package gauge reads what benchmarks measure: CPU time and memory of processes
// from /proc, and the requests that an API server has served from its metrics.
// It needs Linux.
package gauge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// clockTicks per second in /proc (USER_HZ on Linux).
const clockTicks = 100

// CPU is the time that a process has used.
func CPU(pid int) (time.Duration, error) {
	own, _, err := times(pid)
	return own, err
}

// times are those that a process used, and its children that it waited for.
func times(pid int) (own, children time.Duration, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name of the program, in brackets, may have spaces.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, 0, fmt.Errorf("cannot parse /proc/%d/stat", pid)
	}
	var ticks [4]int
	for i := range ticks {
		if ticks[i], err = strconv.Atoi(fields[11+i]); err != nil {
			return 0, 0, fmt.Errorf("cannot parse /proc/%d/stat: %w", pid, err)
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * time.Second / clockTicks, time.Duration(ticks[2]+ticks[3]) * time.Second / clockTicks, nil
}

// Children are the processes that a process started and that still run.
func Children(pid int) ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var children []int
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return nil, err
		}
		for field := range strings.FieldsSeq(string(data)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("cannot parse %s: %w", task, err)
			}
			children = append(children, child)
		}
	}
	return children, nil
}

// CPUOfChildren is the time that the children of a process have used: those that run,
// and those that it has waited for.
func CPUOfChildren(pid int) (time.Duration, error) {
	_, total, err := times(pid)
	if err != nil {
		return 0, err
	}
	children, err := Children(pid)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		if own, _, err := times(child); err == nil { // one that has ended meanwhile is counted next
			total += own
		}
	}
	return total, nil
}

// Machine is the time that all processors of the machine were busy.
func Machine() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	total := 0
	for i, field := range strings.Fields(line) {
		// user nice system idle iowait irq softirq
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("cannot parse /proc/stat: %w", err)
		}
		total += n
	}
	return time.Duration(total) * time.Second / clockTicks, nil
}

// Memory reads a field of /proc/PID/status, such as VmRSS, in MB.
func Memory(pid int, field string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kB, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kB * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("cannot find %s of process %d", field, pid)
}

// Evict has the kernel drop a file that it holds in memory, before a process maps it. A
// program that was just linked is there in pieces of up to 2 MB. Since 6.18 Linux maps a piece
// as a whole when one of its pages is used, so that nearly all of a large program counts as
// resident. One that is read from a disk, as after a boot, is there in small pieces.
func Evict(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	// What is not on the disk stays.
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// ResetPeak makes the process's VmHWM begin anew.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o200)
}

// Requests reads what an API server has served, as "VERB resource", watches
// excepted.
func Requests(ctx context.Context, config *rest.Config) (map[string]float64, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	body, err := c.Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read metrics: %w", err)
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("cannot parse metrics: %w", err)
	}
	counts := map[string]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["verb"] == "WATCH" || labels["resource"] == "" {
			continue
		}
		key := labels["verb"] + " " + labels["resource"]
		if labels["subresource"] != "" {
			key += "/" + labels["subresource"]
		}
		counts[key] += m.GetCounter().GetValue()
	}
	return counts, nil
}

// WrittenBytes is what an etcd has written into its log, by its metrics, which it serves
// on the socket of its clients.
func WrittenBytes(ctx context.Context, socket string) (float64, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, fmt.Errorf("cannot read metrics of etcd: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, fmt.Errorf("cannot parse metrics of etcd: %w", err)
	}
	const name = "etcd_disk_wal_write_bytes_total"
	for _, m := range families[name].GetMetric() {
		return m.GetGauge().GetValue() + m.GetCounter().GetValue(), nil
	}
	return 0, fmt.Errorf("cannot read metrics of etcd: there is no %s", name)
}
