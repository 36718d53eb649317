// Package capi installs Cluster API core into a cluster and runs its unmodified manager as a child process.
//
// It takes the place of clusterctl, cert-manager and an image: it applies the definitions and webhook configurations that
// the Cluster API module ships, with webhooks addressed by URL on loopback and certificates from an authority of its own.
//
// Invariants:
//   - Ready means that all definitions are established, the manager says that it is ready, and its webhook port answers.
//   - The manager dies with this process, and this process ends when the manager does: the node restarts both together.
//   - Everything is applied again at every start, because port and authority are new each time.
//
// Failure model: between a start and the manager's first answer writes to Cluster API objects fail, as they do in a cluster
// whose webhook pods are down; callers retry. No state is kept: the working directory may be lost at any time.
package capi

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/e2e/local/health"
	"github.com/cascade-gitops/cascade/e2e/local/manifest"
	"github.com/cascade-gitops/cascade/e2e/local/process"
)

const (
	fieldManager = "capi-install"
	// webhookHost is where the manager is reached. It listens on every address, and which one is asked makes no difference.
	webhookHost = "127.0.0.1"

	installTimeout = 2 * time.Minute
	managerGrace   = 5 * time.Second
)

// Config says what to install and run.
type Config struct {
	Client     *rest.Config
	Kubeconfig string // what the manager is given; empty: it looks for itself, as in a cluster
	Manifests  string // directory with crd/bases and webhook/manifests.yaml of the Cluster API module
	Manager    string // the manager's program
	HealthAddr string // where /readyz of all this is served
	WorkDir    string // for certificates
	Log        *slog.Logger
}

// Run installs Cluster API and runs its manager until the context ends.
func Run(ctx context.Context, cfg Config) error {
	began := time.Now()
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	webhookPort, managerHealth := ports[0], net.JoinHostPort(webhookHost, strconv.Itoa(ports[1]))
	authority, err := writeCertificates(filepath.Join(cfg.WorkDir, "certs"), webhookHost)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	installed := make(chan struct{})
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)
	group.Go(func() {
		if err := health.Serve(ctx, cfg.HealthAddr, func(ctx context.Context) error {
			select {
			case <-installed:
				return managerReady(ctx, managerHealth, webhookPort)
			default:
				return errors.New("the definitions are not installed yet")
			}
		}); err != nil {
			cancel(err)
		}
	})

	if err := install(ctx, cfg, authority, webhookPort); err != nil {
		return errors.Join(err, cause(ctx))
	}
	close(installed)
	cfg.Log.Info("Cluster API definitions are established", "took", time.Since(began).Round(time.Millisecond))

	launcher := process.NewLauncher()
	defer launcher.Close()
	cmd := exec.Command(cfg.Manager, managerArgs(cfg, managerHealth, webhookPort)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := launcher.Start(cmd); err != nil {
		return fmt.Errorf("cannot start Cluster API manager: %w", err)
	}
	ended := make(chan struct{})
	group.Go(func() {
		defer close(ended)
		if err := cmd.Wait(); err != nil {
			cfg.Log.Info("Cluster API manager ended", "error", err)
		}
	})
	select {
	case <-ended:
		return fmt.Errorf("cannot go on without the Cluster API manager: it ended (%s)", cmd.ProcessState)
	case <-ctx.Done():
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err == nil {
		select {
		case <-ended:
			return cause(ctx)
		case <-time.After(managerGrace):
		}
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot end Cluster API manager: %w", err)
	}
	return cause(ctx)
}

// cause is why the context ended, or nil if it was asked to.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func managerArgs(cfg Config, healthAddr string, webhookPort int) []string {
	args := []string{
		"--webhook-port=" + strconv.Itoa(webhookPort),
		"--webhook-cert-dir=" + filepath.Join(cfg.WorkDir, "certs"),
		"--health-addr=" + healthAddr,
		"--diagnostics-address=127.0.0.1:0", "--insecure-diagnostics=true",
		"--leader-elect=false", // the Deployment replaces its only pod by ending the old one first
	}
	if cfg.Kubeconfig != "" {
		args = append(args, "--kubeconfig="+cfg.Kubeconfig)
	}
	return args
}

// install applies all definitions and waits until they are established.
func install(ctx context.Context, cfg Config, authority []byte, webhookPort int) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	config := rest.CopyConfig(cfg.Client)
	config.QPS, config.Burst = 100, 200
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(cfg.Manifests, "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("cannot find the definitions of Cluster API in %s: %w", cfg.Manifests, errors.Join(err, os.ErrNotExist))
	}
	files = append(files, filepath.Join(cfg.Manifests, "webhook", "manifests.yaml"))

	base := "https://" + net.JoinHostPort(webhookHost, strconv.Itoa(webhookPort))
	bundle := base64.StdEncoding.EncodeToString(authority)
	var mu sync.Mutex
	var definitions []string
	var failures []error
	var group sync.WaitGroup
	for _, file := range files {
		group.Go(func() {
			names, err := applyFile(ctx, client, file, base, bundle)
			mu.Lock()
			defer mu.Unlock()
			definitions = append(definitions, names...)
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	return manifest.AwaitEstablished(ctx, client, definitions)
}

// applyFile applies what is in one file and returns the names of the definitions in it.
func applyFile(ctx context.Context, client dynamic.Interface, file, base, bundle string) ([]string, error) {
	stream, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read manifest: %w", err)
	}
	objects, err := manifest.Decode(stream)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var definitions []string
	for _, object := range objects {
		if err := adapt(object, base, bundle); err != nil {
			return definitions, err
		}
		if object.GetKind() == "CustomResourceDefinition" {
			definitions = append(definitions, object.GetName())
		}
		if err := retryApply(ctx, client, object); err != nil {
			return definitions, err
		}
	}
	return definitions, nil
}

// retryApply rides out an API server that has just started.
func retryApply(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) error {
	for {
		err := manifest.Apply(ctx, client, fieldManager, object)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// adapt does to the module's manifests what its kustomize overlays do, with URLs where those have a Service.
func adapt(object *unstructured.Unstructured, base, bundle string) error {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["cluster.x-k8s.io/provider"] = "cluster-api"
	labels["clusterctl.cluster.x-k8s.io"] = "" // as clusterctl marks what it installs, and looks for when it moves
	switch object.GetKind() {
	case "CustomResourceDefinition":
		labels["cluster.x-k8s.io/v1beta1"] = "v1beta1"
		labels["cluster.x-k8s.io/v1beta2"] = "v1beta2"
		object.SetLabels(labels)
		conversion := map[string]any{
			"strategy": "Webhook",
			"webhook": map[string]any{
				"conversionReviewVersions": []any{"v1"},
				"clientConfig":             map[string]any{"url": base + "/convert", "caBundle": bundle},
			},
		}
		if err := unstructured.SetNestedMap(object.Object, conversion, "spec", "conversion"); err != nil {
			return fmt.Errorf("cannot set conversion of %s: %w", object.GetName(), err)
		}
		return nil
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		object.SetName("capi-" + object.GetName())
		object.SetLabels(labels)
		hooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		if err != nil {
			return fmt.Errorf("cannot read webhooks of %s: %w", object.GetName(), err)
		}
		for _, item := range hooks {
			hook, ok := item.(map[string]any)
			if !ok {
				return fmt.Errorf("cannot read webhooks of %s: one is no object", object.GetName())
			}
			path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
			if err != nil || path == "" {
				return fmt.Errorf("cannot find the path of webhook %v", hook["name"])
			}
			hook["clientConfig"] = map[string]any{"url": base + path, "caBundle": bundle}
		}
		if err := unstructured.SetNestedSlice(object.Object, hooks, "webhooks"); err != nil {
			return fmt.Errorf("cannot set webhooks of %s: %w", object.GetName(), err)
		}
		return nil
	}
	return fmt.Errorf("cannot install %s %s: only definitions and webhooks are expected", object.GetKind(), object.GetName())
}

// managerReady asks the manager, and tries its webhook port: it says that it is ready a moment before that is open.
func managerReady(ctx context.Context, healthAddr string, webhookPort int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+healthAddr+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("cannot make request: %w", err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("cannot ask the manager: %w", err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the manager says %s", response.Status)
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it is asked whether it answers, nothing else
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(webhookHost, strconv.Itoa(webhookPort)))
	if err != nil {
		return fmt.Errorf("cannot reach the webhooks: %w", err)
	}
	return connection.Close()
}

// freePorts returns ports that nobody listened on a moment ago. If somebody takes one before the manager does, the manager
// ends, and the next start tries others.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", ":0")
		if err != nil {
			return nil, fmt.Errorf("cannot find a free port: %w", err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
