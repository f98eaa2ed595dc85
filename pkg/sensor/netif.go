// A netifSource judges the service network's interface by the kernel's data: operational state, carrier, and the rates
// of errors and drops.
//
// It sends nothing: the acknowledgements of reports (pkg/servicenet) show whether the network beyond the cable works.

package sensor

import (
	"context"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// netifConfig selects the interface and the bounds.
type netifConfig struct {
	Sysfs      string
	Interface  string
	SickErrors float64       // rx_errors and tx_errors together, per second
	SickDrops  float64       // rx_dropped and tx_dropped together, per second
	Window     time.Duration // window for both rates
	Clock      source.Clock
}

// netifSource is one network interface.
type netifSource struct {
	cfg    netifConfig
	sys    source.Root
	seen   bool // it once existed
	errors *source.Growth
	drops  *source.Growth
}

// newNetif returns the source.
func newNetif(cfg netifConfig) *netifSource {
	return &netifSource{
		cfg: cfg, sys: source.Root(cfg.Sysfs),
		errors: source.NewGrowth(cfg.Window),
		drops:  source.NewGrowth(cfg.Window),
	}
}

// Name returns "netif:" and the interface's name.
func (s *netifSource) Name() string { return "netif:" + s.cfg.Interface }

// Component returns fault.ComponentServiceNetwork.
func (s *netifSource) Component() fault.Component { return fault.ComponentServiceNetwork }

// resume implements resumer.
func (s *netifSource) resume(source.Reading) { s.seen = true }

// Read measures now. An interface that never existed is unknown; one that has disappeared is FAILED.
func (s *netifSource) Read(context.Context) (source.Reading, error) {
	j := source.NewJudge(s.Component(), s.Name())
	absent := "no interface " + s.cfg.Interface + " on this machine"
	if !s.sys.Exists(netDir, s.cfg.Interface) {
		if s.seen {
			j.Say(fault.Failed, 0, "", "interface %s is gone", s.cfg.Interface)
		}
		return j.Reading(absent)
	}
	s.seen = true
	judgeInterface(j, s.sys, s.cfg.Interface)
	s.rates(j)
	return j.Reading(absent)
}

// rates judges the counters of Documentation/ABI/testing/sysfs-class-net-statistics. Growth is divided by the whole
// window even when less of it is known, so that a single error after the start is no rate.
func (s *netifSource) rates(j *source.Judge) {
	now := s.cfg.Clock()
	for _, r := range []struct {
		what   string
		files  [2]string
		growth *source.Growth
		limit  float64
	}{
		{"errors", [2]string{"statistics/rx_errors", "statistics/tx_errors"}, s.errors, s.cfg.SickErrors},
		{"drops", [2]string{"statistics/rx_dropped", "statistics/tx_dropped"}, s.drops, s.cfg.SickDrops},
	} {
		var sum uint64
		ok := true
		for _, f := range r.files {
			n, err := s.sys.Uint(netDir, s.cfg.Interface, f)
			if err != nil {
				ok = false
				j.Fail(err)
				break
			}
			sum += n
		}
		if !ok {
			continue
		}
		rate := float64(r.growth.Add(now, sum)) / s.cfg.Window.Seconds()
		if rate > r.limit {
			j.Within(s.cfg.Window, fault.Sick, rate, "/s", "%s: %.1f %s a second: more than %.1f", s.cfg.Interface, rate, r.what, r.limit)
		}
	}
}
