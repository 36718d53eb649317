//go:build linux

package mom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	// tokenLife and tokenRenewal leave several tries.
	tokenLife    = 4 * time.Hour
	tokenRenewal = 30 * time.Minute
	// tokenLook is the pause between two looks at the clock: a machine that slept for longer
	// than the token lives gets another one soon after it wakes up.
	tokenLook = 20 * time.Second
)

// account has the agent be its own service account, as it is in a pod: the walls around
// Clusters know it by that name. It returns the kubeconfig, whose token is renewed as long as
// writers run.
func (r *run) account(ctx context.Context) (kubeconfig string, err error) {
	dir := r.Folder.path("account")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make directory of the agent: %w", err)
	}
	token := r.Folder.path("account", "token")
	if err := r.renew(ctx, token); err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	cluster.Server, cluster.CertificateAuthority = r.config.Host, r.config.CAFile
	login := clientcmdapi.NewAuthInfo()
	login.TokenFile = token
	at := clientcmdapi.NewContext()
	at.Cluster, at.AuthInfo = r.Name, v1alpha1.AgentName
	config.Clusters[r.Name], config.AuthInfos[v1alpha1.AgentName], config.Contexts[r.Name], config.CurrentContext = cluster, login, at, r.Name
	text, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("cannot write kubeconfig of the agent: %w", err)
	}
	kubeconfig = r.Folder.path("account", "kubeconfig")
	if err := replaceFile(kubeconfig, text); err != nil {
		return "", err
	}
	r.writers.Go(func() {
		ticker := time.NewTicker(tokenLook)
		defer ticker.Stop()
		last := r.Now()
		for {
			select {
			case <-r.writing.Done():
				return
			case <-ticker.C:
			}
			err := r.Folder.handOut()
			if tokenDue(last, r.Now()) {
				failed := r.renew(r.writing, token)
				if failed == nil {
					last = r.Now()
				}
				err = errors.Join(err, failed)
			}
			if err != nil && r.writing.Err() == nil {
				r.Say("%v", err)
			}
		}
	})
	return kubeconfig, nil
}

// tokenDue reports whether it is time to renew a token. The monotonic clock stands still while
// a machine sleeps, so it is told by the other one as well.
func tokenDue(last, now time.Time) bool {
	return max(now.Sub(last), now.Round(0).Sub(last.Round(0))) >= tokenRenewal
}

// renew asks for a token, which lapses by itself.
func (r *run) renew(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	seconds := int64(tokenLife.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}}
	if err := r.client.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("cannot get a token for the agent: %w", err)
	}
	return replaceFile(file, []byte(request.Status.Token))
}
