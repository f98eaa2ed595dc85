package configdoc

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

// presetBounds is a row of docs/operations.md: the preset, and the bounds of a half and of a node.
var presetBounds = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([0-9.]+) (m?s) \\| ([0-9.]+) (m?s) \\|")

// TestOperationsStatesBoundsOfPresets: the table of presets in docs/operations.md has every preset, with the computed bounds.
func TestOperationsStatesBoundsOfPresets(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := presetBounds.FindAllStringSubmatch(string(b), -1)
	if len(rows) != len(config.PresetNames()) {
		t.Errorf("%d rows of presets: want %d", len(rows), len(config.PresetNames()))
	}
	for _, r := range rows {
		p, err := config.Preset(r[1])
		if err != nil {
			t.Errorf("docs/operations.md: %v", err)
			continue
		}
		for i, bound := range []time.Duration{p.HalfBound(), p.NodeBound()} {
			if stated, err := time.ParseDuration(r[2+2*i] + r[3+2*i]); err != nil || stated != bound {
				t.Errorf("docs/operations.md, preset %s: %v (%v): want %v", r[1], stated, err, bound)
			}
		}
	}
}
