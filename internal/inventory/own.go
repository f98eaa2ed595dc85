package inventory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/durable"
)

// mark begins the first line of a bundle's configuration. The checksum after it shows whether the configuration was
// changed on its machine, and whether the bundle's version has changed since.
const mark = "# Made by 'lofamoctl cluster', which keeps what is changed here; sha256 of what follows: "

// marked is a configuration as bundles have it.
func marked(text []byte) []byte { return changedFrom(text, text) }

// changedFrom returns the configuration text with the mark of made, the configuration from which it was changed.
func changedFrom(made, text []byte) []byte {
	return slices.Concat([]byte(mark+sum(made)+"\n"), text)
}

func sum(text []byte) string {
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

// unmark splits a configuration into the checksum of its original, empty if there is no mark, and its text.
func unmark(b []byte) (from string, text []byte) {
	line, text, ok := bytes.Cut(b, []byte("\n"))
	if from, is := strings.CutPrefix(string(line), mark); ok && is {
		return strings.TrimSpace(from), text
	}
	return "", b
}

// Config selects the treatment of a configuration that was changed on its machine.
type Config string

// The treatments.
const (
	// ConfigSafe keeps it if the bundle's is the one that it was changed from; otherwise both have changed, and Install
	// fails.
	ConfigSafe Config = ""
	// ConfigKeep keeps it in any case. Install then puts the checksum of the bundle's configuration into its mark, so that
	// later joins keep it too, until a bundle has another configuration.
	ConfigKeep Config = "keep"
	// ConfigReplace replaces it by the bundle's.
	ConfigReplace Config = "replace"
)

// configuration is the bundle's file of that kind.
func (b Bundle) configuration() string { return strings.TrimPrefix(b.Service, "lofamo-") + ".yaml" }

// Configuration returns the path of the bundle's configuration, below root.
func (b Bundle) Configuration(root string) string {
	return filepath.Join(root, b.etc, b.configuration())
}

// Keeps reports whether Install will keep the changed configuration below root.
func (b Bundle) Keeps(root string, want Config) (bool, error) {
	if !slices.Contains([]Config{ConfigSafe, ConfigKeep, ConfigReplace}, want) {
		return false, fmt.Errorf("configuration: given %q: want keep or replace", string(want))
	}
	path := b.Configuration(root)
	there, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("installed configuration: %w", err)
	}
	given, err := os.ReadFile(filepath.Join(b.Dir, b.configuration()))
	if err != nil {
		return false, fmt.Errorf("bundle %s: %w", b.Dir, err)
	}
	from, old := unmark(there)
	_, made := unmark(given)
	switch {
	case bytes.Equal(old, made), want == ConfigReplace:
		return false, nil
	case want == ConfigKeep, from == sum(made):
		return true, nil
	case from == sum(old):
		return false, nil
	}
	keys, err := differ(old, made)
	if err != nil {
		return false, fmt.Errorf("installed configuration: %s: %w", path, err)
	}
	return false, fmt.Errorf("%s was changed on this machine, and differs from the bundle's in %s: want --config "+
		"keep, or --config replace, which loses the changes (put permanent settings into settings/%s of the operator's directory)", path,
		strings.Join(keys, ", "), b.configuration())
}

// remark marks the configuration that Install keeps as changed from the bundle's. A link stays as it is.
func (b Bundle) remark(files *durable.Batch, root string) error {
	path := b.Configuration(root)
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	there, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	given, err := os.ReadFile(filepath.Join(b.Dir, b.configuration()))
	if err != nil {
		return err
	}
	_, kept := unmark(there)
	_, made := unmark(given)
	text, owner := changedFrom(made, kept), info.Sys().(*syscall.Stat_t)
	if bytes.Equal(text, there) {
		return nil
	}
	if err := files.Add(path, text, info.Mode().Perm(), int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("mark the kept configuration %s: %w", path, err)
	}
	return nil
}

// differ returns the keys in which two configurations differ, without their values, which may be secret.
func differ(a, b []byte) ([]string, error) {
	flat := func(text []byte) (map[string]string, error) {
		var tree map[string]any
		if err := yaml.Unmarshal(text, &tree); err != nil {
			return nil, err
		}
		out := map[string]string{}
		flatten("", tree, out)
		return out, nil
	}
	x, err := flat(a)
	if err != nil {
		return nil, err
	}
	y, err := flat(b)
	if err != nil {
		return nil, err
	}
	keys := map[string]bool{}
	for k, v := range x {
		if w, ok := y[k]; !ok || v != w {
			keys[k] = true
		}
	}
	for k := range y {
		if _, ok := x[k]; !ok {
			keys[k] = true
		}
	}
	if len(keys) == 0 {
		return []string{"comments alone"}, nil
	}
	return slices.Sorted(maps.Keys(keys)), nil
}

func flatten(prefix string, v any, out map[string]string) {
	m, ok := v.(map[string]any)
	if !ok {
		out[strings.TrimSuffix(prefix, ".")] = fmt.Sprint(v)
		return
	}
	for k, v := range m {
		flatten(prefix+k+".", v, out)
	}
}
