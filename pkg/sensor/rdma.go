// An rdmaSource judges a peripheral that is one port of an RDMA device (InfiniBand, RoCE, iWARP) by the port state that the
// device's driver reports.
//
// It sends nothing and reads no error counters: a check script can do both.

package sensor

import (
	"context"
	"fmt"
	"strconv"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// rdmaConfig selects the port.
type rdmaConfig struct {
	Sysfs     string
	Device    string // the kernel's name, such as mlx5_0
	Port      int    // from 1
	Component fault.Component
}

// rdmaSource is one port of an RDMA device.
type rdmaSource struct {
	cfg  rdmaConfig
	sys  source.Root
	seen bool // the port has existed since the half started
}

// newRDMA returns the source.
func newRDMA(cfg rdmaConfig) *rdmaSource { return &rdmaSource{cfg: cfg, sys: source.Root(cfg.Sysfs)} }

// Name returns "rdma:", the device's name and the port's number.
func (s *rdmaSource) Name() string { return "rdma:" + s.port() }

// Component returns the configured component.
func (s *rdmaSource) Component() fault.Component { return s.cfg.Component }

func (s *rdmaSource) port() string { return s.cfg.Device + "/" + strconv.Itoa(s.cfg.Port) }

// Read reads the port's logical state (Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/core/sysfs.c, state_show). A
// port that never existed is unknown; one that has disappeared is FAILED.
func (s *rdmaSource) Read(context.Context) (source.Reading, error) {
	j := source.NewJudge(s.cfg.Component, s.Name())
	absent := "no RDMA port " + s.port() + " on this machine"
	path := []string{"class/infiniband", s.cfg.Device, "ports", strconv.Itoa(s.cfg.Port)}
	if !s.sys.Exists(path...) {
		if s.seen {
			j.Say(fault.Failed, 0, "", "RDMA port %s is gone", s.port())
		}
		return j.Reading(absent)
	}
	s.seen = true
	state, err := s.sys.Text(append(path, "state")...)
	if err != nil {
		j.Fail(err)
		return j.Reading(absent)
	}
	switch state {
	case "1: DOWN":
		j.Say(fault.Failed, 0, "", "RDMA port %s is DOWN", s.port())
	case "2: INIT", "3: ARMED": // it has a link, and no subnet manager has activated it
		j.Say(fault.Sick, 0, "", "RDMA port %s is not active: state %q", s.port(), state)
	case "5: ACTIVE_DEFER":
		j.Say(fault.Sick, 0, "", "RDMA port %s lost its link and waits for its return (ACTIVE_DEFER)", s.port())
	case "4: ACTIVE":
		j.Say(fault.Normal, 0, "", "RDMA port %s is ACTIVE", s.port())
	default:
		j.Fail(fmt.Errorf("read %s: unknown state %.40q", s.sys.Path(append(path, "state")...), state))
	}
	return j.Reading(absent)
}
