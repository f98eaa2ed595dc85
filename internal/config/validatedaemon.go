package config

import (
	"net/netip"
	"path/filepath"
	"time"
)

func (r RecoveryConfig) validate(p *problems) {
	if r.Restarts < 1 || r.Restarts > 100 {
		p.bad("recovery.restarts", r.Restarts, "1 to 100")
	}
	if w := r.Window.D(); w < time.Second || w > 24*time.Hour {
		p.bad("recovery.window", w, "1s to 24h")
	}
	if w := r.StartWithin.D(); w < time.Second || w > 10*time.Minute {
		p.bad("recovery.startWithin", w, "1s to 10m")
	}
}

func (w HardwareWatchdogConfig) validate(p *problems, window WindowConfig) {
	if !window.Zero() && w.Device != "" {
		p.bad("hardwareWatchdog.device", w.Device, "nothing beside window: the words of a half on another kernel must not reset this machine")
	}
	timeout, contact := w.Timeout.D(), w.ContactWithin.D()
	switch {
	case w.Device == "" && w != (HardwareWatchdogConfig{}):
		p.bad("hardwareWatchdog.device", `""`, "a device such as /dev/watchdog0, because other keys of hardwareWatchdog are set")
		return
	case w.Device == "":
		return
	case !filepath.IsAbs(w.Device):
		p.bad("hardwareWatchdog.device", w.Device, "an absolute path")
	}
	if timeout < 4*time.Second || timeout > 5*time.Minute || timeout%time.Second != 0 {
		p.bad("hardwareWatchdog.timeout", timeout, "4s to 5m, in whole seconds")
	}
	if contact != 0 && (contact < 5*time.Second || contact > time.Hour) {
		p.bad("hardwareWatchdog.contactWithin", contact, "5s to 1h, or 0s for no self-fencing")
	}
}

func (a Agent) validateNetconsole(p *problems) {
	n := a.Netconsole
	switch {
	case n.Listen != "":
		p.listen("netconsole.listen", n.Listen)
		if n.Listen == a.Window.Listen {
			p.bad("netconsole.listen", n.Listen, "an address other than that of window.listen")
		}
	case len(n.Senders) > 0:
		p.bad("netconsole.listen", `""`, "an address ip:port, because netconsole.senders is set")
	}
	if len(n.Senders) > 64 {
		p.bad("netconsole.senders", len(n.Senders), "at most 64 entries")
	}
	for _, addr := range sortedKeys(n.Senders) {
		if _, err := netip.ParseAddr(addr); err != nil {
			p.bad("netconsole.senders", addr, "an IP address without a port")
		}
		p.name("netconsole.senders."+addr, string(n.Senders[addr]))
	}
}

// ValidateHostWords names the fields of netconsole with which the DNP half of a window would not receive the lines of its host's kernel.
func (a Agent) ValidateHostWords() error {
	p := &problems{}
	n := a.Netconsole
	listen, err := netip.ParseAddrPort(n.Listen)
	window, werr := netip.ParseAddrPort(a.Window.Listen)
	if err == nil && werr == nil && listen.Addr().Unmap() != window.Addr().Unmap() {
		p.bad("netconsole.listen", n.Listen, "the IP of window.listen (%s), because the DNP half receives its own host's lines over the "+
			"window's network", window.Addr())
	}
	if len(n.Senders) > 0 {
		p.bad("netconsole.senders", len(n.Senders), "none, because the DNP half expects its own host's lines, from window.peer (%s)",
			a.Window.Peer)
	}
	return p.err()
}

func (s SelfTestConfig) validate(p *problems) {
	every, idle := s.Interval.D(), s.IdleAfter.D()
	if every != 0 && (every < 500*time.Millisecond || every > 5*time.Second) {
		p.bad("selfTest.interval", every, "500ms to 5s, or 0s for no self-tests")
	}
	if every != 0 && (idle < every || idle > 10*time.Minute) {
		p.bad("selfTest.idleAfter", idle, "selfTest.interval (%v) to 10m", every)
	}
}
