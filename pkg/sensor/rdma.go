// An rdmaSource judges a peripheral that is one port of an RDMA device by the port state that the device's driver reports. Where no subnet
// manager sets that state (RoCE, iWARP, EFA), the port's network interface must confirm it.
//
// It sends nothing and reads no error counters: a check script can do both.

package sensor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// resume implements resumer.
func (s *rdmaSource) resume(source.Reading) { s.seen = true }

// Read judges the port by its logical state, and by its network interface unless it is a port of InfiniBand: there, an interface is an
// IPoIB service, which needs no configuration there (Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/core/sysfs.c,
// state_show). A port that never existed is unknown; one that has disappeared is FAILED.
func (s *rdmaSource) Read(context.Context) (source.Reading, error) {
	j := source.NewJudge(s.cfg.Component, s.Name())
	if !s.sys.Exists(s.path()...) {
		if s.seen {
			j.Say(fault.Failed, 0, "", "RDMA port %s is gone", s.port())
		}
		return j.Reading("no RDMA port " + s.port() + " on this machine")
	}
	s.seen = true
	confirmed := s.infiniBand()
	if !confirmed {
		if name := s.netInterface(); name != "" {
			confirmed = judgeInterface(j, s.sys, name)
		}
	}
	state, err := s.sys.Text(s.path("state")...)
	switch {
	case err != nil:
		j.Fail(err)
	case state == "1: DOWN":
		j.Say(fault.Failed, 0, "", "RDMA port %s is DOWN", s.port())
	case state == "2: INIT" || state == "3: ARMED": // it has a link, and no subnet manager has activated it
		j.Say(fault.Sick, 0, "", "RDMA port %s is not active: state %q", s.port(), state)
	case state == "5: ACTIVE_DEFER":
		j.Say(fault.Sick, 0, "", "RDMA port %s lost its link and waits for its return (ACTIVE_DEFER)", s.port())
	case state == "4: ACTIVE" && confirmed:
		j.Say(fault.Normal, 0, "", "RDMA port %s is ACTIVE", s.port())
	case state == "4: ACTIVE":
	default:
		j.Fail(s.sys.Bad(fmt.Errorf("unknown state %.40q", state), s.path("state")...))
	}
	return j.Reading("RDMA port " + s.port() + " is ACTIVE by its driver's word alone: no network interface confirms it")
}

func (s *rdmaSource) path(file ...string) []string {
	return append([]string{"class/infiniband", s.cfg.Device, "ports", strconv.Itoa(s.cfg.Port)}, file...)
}

// infiniBand reports whether the port's state is that of a fabric with a subnet manager. The drivers of other ports, such as efa, may
// state ACTIVE whether or not there is a link.
func (s *rdmaSource) infiniBand() bool {
	layer, err := s.sys.Text(s.path("link_layer")...)
	return layer == "InfiniBand" || errors.Is(err, fs.ErrNotExist) // a kernel without other layers
}

// netInterface returns the name of the port's network interface; empty: it has none, or the device has several and does not say which.
func (s *rdmaSource) netInterface() string {
	if name, err := s.sys.Text(s.path("gid_attrs/ndevs/0")...); err == nil && name != "" {
		return name
	}
	if names, _ := s.sys.Glob("class/infiniband/"+s.cfg.Device+"/device/net", "*"); len(names) == 1 {
		return names[0]
	}
	return ""
}
