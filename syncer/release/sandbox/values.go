package sandbox

import (
	"reflect"

	"helm.sh/helm/v4/pkg/chart/common"
)

// note remembers the maps of a value by address.
func note(seen map[uintptr]bool, v any, depth int) {
	m, list := parts(v)
	if m != nil {
		at := reflect.ValueOf(v).Pointer()
		if seen[at] || depth > deepestValue {
			return
		}
		seen[at] = true
		for _, item := range m {
			note(seen, item, depth+1)
		}
	}
	for _, item := range list {
		note(seen, item, depth+1)
	}
}

// parts of a value that is a map or a list of anything.
func parts(v any) (map[string]any, []any) {
	switch v := v.(type) {
	case map[string]any:
		return v, nil
	case common.Values:
		return v, nil
	case []any:
		return nil, v
	}
	return nil, nil
}

// pay pays for going through a whole value.
func (b *budget) pay(v any) error {
	cost, err := b.measure(v, 0)
	if err == nil {
		return b.spend(0, cost)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exceeded == nil {
		b.exceeded = err
	}
	return b.exceeded
}

// measure counts the nodes and bytes of a value as it would be written, up to
// more than may be spent.
func (b *budget) measure(v any, depth int) (int64, error) {
	if depth > deepestValue {
		return 0, exceeds("its templates build a value that is nested deeper than %d, or contains itself", deepestValue)
	}
	if s, ok := v.(string); ok {
		return int64(len(s)) + 1, nil
	}
	var cost int64 = 1
	add := func(item any) error {
		n, err := b.measure(item, depth+1)
		if cost += n; err == nil && cost > b.limits.text {
			err = exceeds("its templates build a value of more than %d MiB", b.limits.text>>20)
		}
		return err
	}
	m, list := parts(v)
	if m != nil && b.given != nil && b.given[reflect.ValueOf(v).Pointer()] {
		return 1, nil
	}
	for k, item := range m {
		cost += int64(len(k))
		if err := add(item); err != nil {
			return 0, err
		}
	}
	for _, item := range list {
		if err := add(item); err != nil {
			return 0, err
		}
	}
	switch typed := v.(type) {
	case []string:
		for _, s := range typed {
			cost += int64(len(s)) + 1
		}
	case []byte:
		cost += int64(len(typed))
	}
	return cost, nil
}
