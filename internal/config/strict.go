package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// decode reads one strict YAML document over the defaults in into, a pointer to a struct. Unknown
// keys are all named with their place; keys are case-sensitive.
func decode(b []byte, into any) error {
	if n := documents(b); n > 1 {
		return fmt.Errorf("%d YAML documents: want one", n)
	}
	js, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return fmt.Errorf("not YAML: %w", err)
	}
	var tree any
	if err := json.Unmarshal(js, &tree); err != nil {
		return fmt.Errorf("not YAML: %w", err)
	}
	if tree == nil {
		return nil // an empty file, or comments only
	}
	if errs := checkKeys("", tree, reflect.TypeOf(into).Elem()); len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := json.Unmarshal(js, into); err != nil {
		return explain(err)
	}
	return nil
}

// documents counts YAML documents: "---" at the start of a line ends a document at any place, even in block scalars.
// One marker before any content does not count.
func documents(b []byte) int {
	n, content := 1, false
	for line := range bytes.Lines(b) {
		line = bytes.TrimRight(line, " \t\r\n")
		if bytes.Equal(line, []byte("---")) || bytes.HasPrefix(line, []byte("--- ")) {
			if content {
				n++
			}
			content = len(line) > 3
			continue
		}
		if t := bytes.TrimLeft(line, " \t"); len(t) > 0 && t[0] != '#' {
			content = true
		}
	}
	return n
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// checkKeys walks a decoded tree beside its type and names every unknown key, every null, every array that is longer than
// its type, and every value that its type refuses.
func checkKeys(path string, v any, t reflect.Type) []error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var errs []error
	if v != nil && reflect.PointerTo(t).Implements(unmarshaler) { // its own error does not name the key
		if b, err := json.Marshal(v); err == nil {
			if err := json.Unmarshal(b, reflect.New(t).Interface()); err != nil {
				return []error{fmt.Errorf("%s: %w", path, err)}
			}
		}
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		for _, k := range sortedKeys(v) {
			at := join(path, k)
			switch t.Kind() {
			case reflect.Struct:
				fields := jsonFields(t)
				ft, ok := fields[k]
				if !ok {
					errs = append(errs, fmt.Errorf("%s: unknown key: want one of %s", at, strings.Join(sortedKeys(fields), ", ")))
					continue
				}
				errs = append(errs, checkKeys(at, v[k], ft)...)
			case reflect.Map:
				errs = append(errs, checkKeys(at, v[k], t.Elem())...)
			default: // the decoder names the wrong type
			}
		}
	case []any:
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return nil // the decoder names the wrong type
		}
		if t.Kind() == reflect.Array && len(v) > t.Len() {
			errs = append(errs, fmt.Errorf("%s: given %d entries: want at most %d", path, len(v), t.Len()))
		}
		for i, e := range v {
			errs = append(errs, checkKeys(fmt.Sprintf("%s[%d]", path, i), e, t.Elem())...)
		}
	case nil:
		errs = append(errs, fmt.Errorf("%s: given nothing: want a value, or leave the key out", path))
	}
	return errs
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// jsonFields returns the types of a struct's fields by their names in the file.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type, t.NumField())
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			out[name] = f.Type
		}
	}
	return out
}

// explain converts the decoder's type errors to field, given and wanted value.
func explain(err error) error {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		given := strings.NewReplacer("object", "mapping", "array", "list").Replace(te.Value)
		return fmt.Errorf("%s: given a %s: want a %s", te.Field, given, kindName(te.Type))
	}
	return err
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Struct, reflect.Map:
		return "mapping"
	case reflect.Bool:
		return "bool: true or false"
	default:
		return t.Kind().String()
	}
}

// MarshalSupervisor writes the configuration as YAML that ReadSupervisor reads back alike.
func MarshalSupervisor(s Supervisor) ([]byte, error) { return marshal(s) }

func marshal(v any) ([]byte, error) {
	b, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return b, nil
}
