package halfcore

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/config"
)

// Presets give outboxes that are allowed.
func TestOutboxConfigOfEveryPreset(t *testing.T) {
	for _, name := range config.PresetNames() {
		p, err := config.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, rails := range [][]fault.Path{{fault.PathTorus}, {fault.PathDirect, fault.PathGossip, fault.PathTorus}} {
			if err := OutboxConfig(p, rails...).Validate(); err != nil {
				t.Errorf("preset %s, rails %v: %v", name, rails, err)
			}
		}
	}
}
