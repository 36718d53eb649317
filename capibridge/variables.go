package capibridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var notInName = regexp.MustCompile(`[^A-Za-z0-9_]`)

// Variables are what a Cluster gives to the renderings of its layers and, as
// ConfigMap cluster-vars, to the child itself. serverVersion stands in where
// the Cluster does not state one. Names that the engine cannot substitute have
// their other characters replaced by an underscore.
func (c Cluster) Variables(serverVersion string) map[string]string {
	version := c.Version
	if version == "" {
		version = serverVersion
	}
	vars := map[string]string{}
	maps.Copy(vars, c.Provided)
	maps.Copy(vars, map[string]string{
		"cluster_name":      c.Name,
		"cluster_namespace": c.Namespace,
		"cluster_uid":       c.UID,
		"cluster_version":   version,
		"cluster_region":    c.Region,
		"cluster_provider":  c.Provider,
		"cluster_endpoint":  c.Endpoint,
		"pod_cidr":          c.PodCIDR,
		"service_cidr":      c.ServiceCIDR,
	})
	if c.Class != "" {
		_, vars["cluster_class"], _ = strings.Cut(c.Class, "/")
	}
	// In order: two names may become one, and the same of them must always win.
	for _, k := range slices.Sorted(maps.Keys(c.TopologyVariables)) {
		vars[variableName("var_"+k)] = singleLine(c.TopologyVariables[k])
	}
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		vars[variableName("label_"+k)] = c.Labels[k]
	}
	// Last, because a person wrote them for this very purpose.
	for _, k := range slices.Sorted(maps.Keys(c.Annotations)) {
		if name, ok := strings.CutPrefix(k, v1alpha1.VariablePrefix); ok && name != "" {
			vars[variableName(name)] = singleLine(c.Annotations[k])
		}
	}
	return vars
}

// variableName makes a name that substitution accepts.
func variableName(s string) string {
	s = notInName.ReplaceAllString(s, "_")
	if s[0] >= '0' && s[0] <= '9' {
		s = "_" + s
	}
	return s
}

func singleLine(s string) string { return strings.ReplaceAll(s, "\n", "") }

// text of a value: scalars as they are, lists and maps as JSON, which in YAML is
// the same list or map again. JSON of Go has its keys in order and no line
// breaks.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "", false
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float64:
		return fmt.Sprint(v), true
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return "", false
	}
	return strings.TrimSuffix(out.String(), "\n"), true
}
