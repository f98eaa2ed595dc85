package integration

import (
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// TestSickMemoryStaysSickWhenHalfRestarts: a new process of the host half has empty windows. It says SICK, as before, and nothing else
// before that, whether it resumes from its copy or begins cold.
func TestSickMemoryStaysSickWhenHalfRestarts(t *testing.T) {
	sysfs := t.TempDir()
	count := func(n string) {
		sourcetest.Write(t, sysfs, "devices/system/edac/mc/mc0/ue_count", "0")
		sourcetest.Write(t, sysfs, "devices/system/edac/mc/mc0/ce_count", n)
	}
	count("0")
	n := newTestNet(t, pair, func(c *config.Agent) { c.Sensors.Sysfs = sysfs })
	n.start(at0, fault.HalfHost)
	node := n.cfgs[at0].Node
	by := fault.Origin{Node: node, Half: fault.HalfHost}
	n.super.awaitState(by, node, fault.ComponentMemory, fault.Normal, fault.KindSelf)
	count("11")
	n.super.awaitState(by, node, fault.ComponentMemory, fault.Sick, fault.KindSelf)
	for _, spoil := range []func(){
		func() {},
		func() { // a later epoch on disk: the copy's numbers are no good
			p := filepath.Join(n.cfgs[at0].StateDir, "host.epoch")
			if err := storage.SetEpoch(p, storage.ReadEpoch(p)+5); err != nil {
				t.Fatal(err)
			}
		},
	} {
		n.halt(at0, fault.HalfHost)
		spoil()
		n.super.forget()
		n.start(at0, fault.HalfHost)
		// The first word about memory counts.
		first := n.super.await("a state of the memory", func(s said) bool {
			return s.by == by && s.obs.Node == node && s.obs.Component == fault.ComponentMemory
		})
		if first.obs.State != fault.Sick {
			t.Errorf("memory is %s after a restart: want SICK", first.obs.State)
		}
	}
}
