package decrypt

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	"github.com/getsops/sops/v3/cmd/sops/formats"
	"github.com/getsops/sops/v3/config"
	"github.com/getsops/sops/v3/keyservice"
	"github.com/getsops/sops/v3/stores/dotenv"
	"github.com/getsops/sops/v3/stores/ini"
	jsonstore "github.com/getsops/sops/v3/stores/json"
	yamlstore "github.com/getsops/sops/v3/stores/yaml"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// maxKeys bounds the key services that one file can have asked. maxDepth bounds
// the nesting of JSON, which SOPS walks by recursion. maxNodes bounds what SOPS makes
// of all documents of a file, with a copy for each alias; an encrypted value counts as
// some fifteen. maxError bounds texts that quote the answers of key services.
const (
	maxKeys  = 64
	maxDepth = render.MaxDepth
	maxNodes = render.MaxNodes
	maxError = 4 << 10
)

var formatNames = map[formats.Format]string{
	formats.Binary: "binary", formats.Dotenv: "dotenv", formats.Ini: "INI", formats.Json: "JSON", formats.Yaml: "YAML",
}

func storeOf(format formats.Format) sops.Store {
	c := config.NewStoresConfig()
	switch format {
	case formats.Dotenv:
		return dotenv.NewStore(&c.Dotenv)
	case formats.Ini:
		return ini.NewStore(&c.INI)
	case formats.Json:
		return jsonstore.NewStore(&c.JSON)
	case formats.Yaml:
		return yamlstore.NewStore(&c.YAML)
	}
	return jsonstore.NewBinaryStore(&c.JSONBinary)
}

// decrypt reads data in one format and writes its plain content in another.
// Errors of SOPS about the content quote it, so only their kind is told.
func (d *Decryptor) decrypt(ctx context.Context, data []byte, in, out formats.Format) (plain []byte, err error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("cannot decrypt file with size (%d bytes) exceeding limit (%d)", len(data), maxSize)
	}
	if err := guard(data, in); err != nil {
		return nil, err
	}
	defer func() {
		// SOPS can be made to panic by what a file says.
		if recover() != nil {
			plain, err = nil, fmt.Errorf("failed to emit encrypted %s file as decrypted %s: the content is malformed", formatNames[in], formatNames[out])
		}
	}()
	tree, err := storeOf(in).LoadEncryptedFile(data)
	if err != nil {
		if errors.Is(err, sops.MetadataNotFound) {
			return nil, fmt.Errorf("failed to load encrypted %s data: sops metadata not found", formatNames[in])
		}
		return nil, fmt.Errorf("failed to load encrypted %s data: it is malformed%s", formatNames[in], place(err))
	}
	if n := tree.Metadata.MasterKeyCount(); n > maxKeys {
		return nil, fmt.Errorf("cannot get sops data key: the file names %d keys, more than %d", n, maxKeys)
	}
	dataKey, err := tree.Metadata.GetDataKeyWithKeyServices([]keyservice.KeyServiceClient{&service{ctx: ctx, d: d}}, sops.DefaultDecryptionOrder)
	if err != nil {
		return nil, fmt.Errorf("cannot get sops data key: %s", readable(err))
	}
	if _, err := tree.Decrypt(dataKey, aes.NewCipher()); err != nil {
		return nil, fmt.Errorf("error decrypting sops tree: %s", kind(err))
	}
	plain, err = storeOf(out).EmitPlainFile(tree.Branches)
	if err != nil {
		return nil, fmt.Errorf("failed to emit encrypted %s file as decrypted %s: the content does not fit that format", formatNames[in], formatNames[out])
	}
	return plain, nil
}

// guard refuses what SOPS must not parse. render looks at files whose own names are those of
// YAML: the name that tells the format may be another one.
func guard(data []byte, format formats.Format) error {
	switch format {
	case formats.Yaml:
		return render.CheckWithin(data, maxNodes)
	case formats.Json, formats.Binary:
		if err := checkDepth(data); err != nil {
			return err
		}
	}
	if n := render.Nodes(data); n > maxNodes {
		return fmt.Errorf("%w: it may have %d nodes, the limit is %d", render.ErrHostile, n, maxNodes)
	}
	return nil
}

// checkDepth refuses JSON that is nested too deeply. Brackets in strings do not
// count.
func checkDepth(data []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("%w: JSON nested deeper than %d", render.ErrHostile, maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

var (
	line   = regexp.MustCompile(`line \d+`)
	escape = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// place is where a parser met the error, if it says so.
func place(err error) string {
	if at := line.FindString(err.Error()); at != "" {
		return " at " + at
	}
	return ""
}

// kind tells what is wrong with a value without the value.
func kind(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "does not match sops' data format"):
		return "Input string <redacted> does not match sops' data format"
	case strings.Contains(text, "AES_GCM"):
		return "a value does not belong to its key or to the data key"
	}
	return "a value is malformed"
}

// readable is what SOPS tells people about keys and key services that failed.
func readable(err error) string {
	text := err.Error()
	var forPeople sops.UserError
	if errors.As(err, &forPeople) {
		text = forPeople.UserError()
	}
	text = escape.ReplaceAllString(text, "")
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "..."
	}
	return text
}
