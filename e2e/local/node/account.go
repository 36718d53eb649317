package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/cascade-gitops/cascade/e2e/local/process"
)

const (
	// injectedLife is what the API server's admission writes into every pod. Asking for just that gives a token of a year
	// (it is how the server knows clients that cannot renew yet), so it is never asked for.
	injectedLife = 3607
	defaultLife  = 3600
	renewAt      = 0.8 // of the life of a token, as a kubelet does
)

// serviceAccount keeps the credentials of one pod on disk: a token that is bound to the pod, the CA, the namespace, and a
// kubeconfig that refers to the token by file, so that clients see it renewed.
type serviceAccount struct {
	host    *host
	pod     *corev1.Pod
	dir     string
	request authenticationv1.TokenRequestSpec
	renewal time.Time
}

func kubeconfigPath(podDir string) string { return filepath.Join(podDir, "kubeconfig") }

func mountsAccount(container *corev1.Container) bool {
	for _, mount := range container.VolumeMounts {
		if mount.MountPath == accountMount {
			return true
		}
	}
	return false
}

// accountOf returns what credentials the pod asks for, or nil if it asks for none: admission gives every pod a volume for
// them, except where automountServiceAccountToken is false.
func accountOf(h *host, object *corev1.Pod, podDir string) *serviceAccount {
	volume := ""
	for _, container := range allContainers(&object.Spec) {
		for _, mount := range container.VolumeMounts {
			if mount.MountPath == accountMount {
				volume = mount.Name
			}
		}
	}
	if volume == "" {
		return nil
	}
	life, audiences := int64(defaultLife), []string(nil)
	for _, v := range object.Spec.Volumes {
		if v.Name != volume || v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			token := source.ServiceAccountToken
			if token == nil {
				continue
			}
			if token.ExpirationSeconds != nil && *token.ExpirationSeconds != injectedLife {
				life = *token.ExpirationSeconds
			}
			if token.Audience != "" {
				audiences = []string{token.Audience}
			}
		}
	}
	return &serviceAccount{
		host: h, pod: object, dir: podDir,
		request: authenticationv1.TokenRequestSpec{
			Audiences:         audiences,
			ExpirationSeconds: &life,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: object.Name, UID: object.UID},
		},
	}
}

// write writes all files, with a new token.
func (a *serviceAccount) write(ctx context.Context) error {
	dir := filepath.Join(a.dir, "serviceaccount")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make credentials directory: %w", err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: a.host.serverURL, CertificateAuthority: filepath.Join(dir, "ca.crt")}
	config.AuthInfos["serviceaccount"] = &clientcmdapi.AuthInfo{TokenFile: filepath.Join(dir, "token")}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "serviceaccount", Namespace: a.pod.Namespace}
	config.CurrentContext = "pod"
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("cannot encode kubeconfig: %w", err)
	}
	return errors.Join(
		process.WriteFile(filepath.Join(dir, "ca.crt"), a.host.ca, 0o644),
		process.WriteFile(filepath.Join(dir, "namespace"), []byte(a.pod.Namespace), 0o644),
		process.WriteFile(kubeconfigPath(a.dir), kubeconfig, 0o600),
		a.renew(ctx),
	)
}

// renew writes a new token and notes when to do so again.
func (a *serviceAccount) renew(ctx context.Context) error {
	asked := time.Now()
	granted, err := a.host.client.CoreV1().ServiceAccounts(a.pod.Namespace).CreateToken(ctx, a.pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: a.request}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("cannot get token of service account %s/%s: %w", a.pod.Namespace, a.pod.Spec.ServiceAccountName, err)
	}
	if err := process.WriteFile(filepath.Join(a.dir, "serviceaccount", "token"), []byte(granted.Status.Token), 0o600); err != nil {
		return err
	}
	life := granted.Status.ExpirationTimestamp.Sub(asked)
	// Spread a little, or all pods of a node that started together would ask together for ever.
	a.renewal = asked.Add(time.Duration(float64(life) * (renewAt - 0.05*rand.Float64())))
	return nil
}

// keep renews the token until the context ends.
func (a *serviceAccount) keep(ctx context.Context) {
	for sleep(ctx, time.Until(a.renewal)) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := a.renew(call)
		cancel()
		if err != nil && ctx.Err() == nil {
			a.host.Log.Warn("cannot renew token, trying again", "pod", a.pod.Namespace+"/"+a.pod.Name, "error", err)
			a.renewal = time.Now().Add(5 * time.Second)
		}
	}
}
