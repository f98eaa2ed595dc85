package half

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestZeroedRegistersAreLogged zeroes the page of registers, or the whole file. The half writes its word before it checks
// the file, as it does in most cases.
func TestZeroedRegistersAreLogged(t *testing.T) {
	for _, size := range []int{4096, regfile.Size} {
		path, now := filepath.Join(t.TempDir(), "registers"), time.Unix(1000, 0)
		var out strings.Builder
		r, err := OpenPage(path, fault.HalfHost, slog.New(slog.NewTextHandler(&out, nil)))
		if err != nil {
			t.Fatal(err)
		}
		r.SetEpoch(1)
		defer func() { _ = r.File.Close() }()
		r.WriteHost(now, watchdog.HostWord{Valid: true, Memory: watchdog.HealthSick})
		r.Maintain(now)
		if out.Len() > 0 {
			t.Fatalf("an intact page: %s", out.String())
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		r.WriteHost(now, watchdog.HostWord{Valid: true, Memory: watchdog.HealthSick})
		r.Maintain(now.Add(CheckEvery))
		if !strings.Contains(out.String(), "words of the register file were damaged") || !strings.Contains(out.String(), path) {
			t.Errorf("%d bytes zeroed, and the log has %q", size, out.String())
		}
		out.Reset()
		r.Maintain(now.Add(2 * CheckEvery))
		if out.Len() > 0 {
			t.Errorf("%d bytes: logged again: %s", size, out.String())
		}
	}
}

// TestDamagedRegistersAreNoDNPFault: a flipped bit in any register but the watchdog word is no evidence against the
// DNP half. The register keeps its earlier value until the DNP half has written it again.
func TestDamagedRegistersAreNoDNPFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	open := func(h fault.Half) *Page {
		r, err := OpenPage(path, h, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		r.SetEpoch(1)
		t.Cleanup(func() { _ = r.File.Close() })
		return r
	}
	host, dnp, now := open(fault.HalfHost), open(fault.HalfDNP), time.Unix(1000, 0)
	want := watchdog.DescriptorWord{}
	want.Neighbours[0].Memory = true
	for _, err := range []error{
		dnp.File.StoreDNP(watchdog.DNPWord{}), dnp.File.StoreDescriptor(want), dnp.File.Store(watchdog.AddrPower, 45),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	host.ReadDNP(now, true, nil)
	agenttest.FlipWord(t, path, watchdog.AddrRemoteFaultDescriptor)
	agenttest.FlipWord(t, path, watchdog.AddrPower)
	if r := host.ReadDNP(now.Add(2*time.Second), false, nil); r.Sample.Corrupt || r.Descriptor != want || r.Power != 45 {
		t.Errorf("%+v", r)
	}
	if r := host.ReadDNP(now.Add(3*time.Second), false, nil); r.Sample.Corrupt || r.Power != 0 {
		t.Errorf("a register is taken for good for ever: %+v", r)
	}
	if !dnp.Maintain(now) {
		t.Error("the DNP half does not find its flipped registers")
	}
}

// TestRepairedRegisterFileKeepsSelfTestResult: the daemons read the result from the file of the half's lock, which a half takes again when
// it repairs its register file.
func TestRepairedRegisterFileKeepsSelfTestResult(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "registers"), time.Unix(1000, 0)
	p, err := OpenPage(path, fault.HalfHost, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.File.Close() }()
	c := &Common{}
	c.NoteProven(p, false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if !p.Maintain(now) {
		t.Fatal("the register file is not repaired")
	}
	c.NoteProven(p, false)
	if h, err := regfile.LastHolder(path, fault.HalfHost); err != nil || h.Tests != regfile.Proven {
		t.Errorf("%+v, %v: want %q", h, err, regfile.Proven)
	}
}
