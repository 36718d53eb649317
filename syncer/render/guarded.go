package render

import "fmt"

// guarded turns a panic of kustomize, which invalid objects provoke, into an
// error.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kustomize panicked: %v", r)
		}
	}()
	return f()
}
