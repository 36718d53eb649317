package render

import (
	"fmt"
	"net/url"
	"path"
	"strings"

	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// MaxSealedBytes bounds a file that may be encrypted.
const MaxSealedBytes = 5 << 20

// sealed is a file that may be encrypted: the name that tells the decrypter its format, and
// whether it is a patch.
type sealed struct {
	format string
	patch  bool
}

// seal notes the files that the kustomization file of dir names where SOPS files
// are expected: sources of Secrets, and patches. The first file that names one
// decides its format.
func (f *fileSystem) seal(dir string, data []byte) error {
	var k kustypes.Kustomization
	if err := yaml.Unmarshal(data, &k); err != nil {
		return err
	}
	note := func(file, format string, patch bool) {
		at := rooted(file)
		if !path.IsAbs(file) {
			at = rooted(path.Join(dir, file))
		}
		if f.sealed == nil {
			f.sealed = map[string]sealed{}
		}
		s, ok := f.sealed[at]
		if !ok {
			s.format = format
		}
		s.patch = s.patch || patch
		f.sealed[at] = s
	}
	for _, g := range k.SecretGenerator {
		for _, source := range g.FileSources {
			key, file, ok := strings.Cut(source, "=")
			if !ok {
				file = key
			}
			note(file, key, false)
		}
		for _, file := range g.EnvSources {
			format := file
			switch path.Ext(file) {
			case ".yaml", ".yml", ".json", ".env", ".ini":
			default:
				if !strings.HasSuffix(file, ".dockerconfigjson") {
					format += ".env"
				}
			}
			note(file, format, false)
		}
	}
	for _, p := range k.Patches {
		if u, err := url.Parse(p.Path); p.Path == "" || err == nil && u.Scheme != "" && u.Host != "" {
			continue
		}
		note(p.Path, p.Path, true)
	}
	return nil
}

// decrypted is the content of a file after decryption, if it is one that may be
// encrypted. A worker waits meanwhile.
func (f *fileSystem) decrypted(at string, data []byte) ([]byte, error) {
	s, ok := f.sealed[at]
	if !ok {
		return data, nil
	}
	if len(data) > MaxSealedBytes {
		f.refused = f.failed == nil
		return nil, f.note(fmt.Errorf("cannot decrypt %s: %d bytes are more than the limit of %d", at, len(data), MaxSealedBytes))
	}
	open := f.decrypter.File
	if s.patch {
		open = f.decrypter.Patch
	}
	var plain []byte
	err := guarded(func() (err error) {
		plain, err = open(f.ctx, s.format, data)
		return err
	})
	if err != nil {
		f.keys = err
		return nil, f.note(fmt.Errorf("cannot decrypt %s: %w", at, err))
	}
	return f.checked(at, plain)
}
