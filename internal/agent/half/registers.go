package half

import (
	"log/slog"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// Registers gives access to a half's register page without the half: the injection campaign runs the machines around
// it in virtual time. See Page.
type Registers struct{ p *Page }

// OpenRegisters opens the page for a half with an epoch.
func OpenRegisters(path string, half fault.Half, epoch fault.Epoch, log *slog.Logger) (*Registers, error) {
	p, err := OpenPage(path, half, log)
	if err != nil {
		return nil, err
	}
	p.SetEpoch(epoch)
	return &Registers{p}, nil
}

// Maintain checks the file once a second, and reports whether everything must be written again.
func (r *Registers) Maintain(now time.Time) (fresh bool) { return r.p.Maintain(now) }

// ReadDNP is the host half's reading of the page.
func (r *Registers) ReadDNP(now time.Time, take bool, links []grid.Direction) hostcore.Registers {
	return r.p.ReadDNP(now, take, links)
}

// ReadHost is the DNP half's.
func (r *Registers) ReadHost(now time.Time, take bool) dnpcore.Host { return r.p.ReadHost(now, take) }

// WriteDNP writes the DNP half's registers after a step.
func (r *Registers) WriteDNP(now time.Time, out *dnpcore.Output) { r.p.WriteDNP(now, out) }

// WriteHost writes the host half's word.
func (r *Registers) WriteHost(now time.Time, w watchdog.HostWord) { r.p.WriteHost(now, w) }

// File is the file that is mapped now.
func (r *Registers) File() *regfile.File { return r.p.File }

// Broken reports whether the half calls its page broken.
func (r *Registers) Broken() bool { return r.p.broken.On }

// Close gives the page back.
func (r *Registers) Close() error { return r.p.File.Close() }
