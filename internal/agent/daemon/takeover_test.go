package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// A waiting daemon may take over when it has waited long enough and no neighbours are gone except the known ones. A
// waiting daemon in another container, or one that has ended, does not count.
func TestMayTakeOver(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.StateDir = t.TempDir()
	lock, err := lockAlone(filepath.Join(cfg.StateDir, awaitedLock(fault.HalfHost)), "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	dnp, err := regfile.Open(filepath.Join(cfg.StateDir, half.RegisterFile), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dnp.Close() })
	registers := func(w watchdog.DNPWord, d watchdog.DescriptorWord, m chanmask.Mask) {
		t.Helper()
		if err := errors.Join(dnp.StoreDNP(w), dnp.StoreDescriptor(d), dnp.Store(watchdog.AddrChannelMask, uint32(m))); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string) {
		t.Helper()
		for _, half := range []fault.Half{fault.HalfHost, 0} {
			if err := MayTakeOver(cfg, half); err == nil && what != "" || err != nil && (what == "" || !strings.Contains(err.Error(), what)) {
				t.Errorf("%v: want %q", err, what)
			}
		}
	}
	here, err := os.Readlink(pidNamespace)
	if err != nil {
		t.Fatal(err)
	}
	waitsIn := func(where string, since time.Duration) {
		t.Helper()
		if err := lock.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := lock.WriteAt(fmt.Appendf(nil, "%s %d\n", where, half.Monotonic()-since.Nanoseconds()), 0); err != nil {
			t.Fatal(err)
		}
	}
	var gone watchdog.DNPWord
	gone.Links[grid.XMinus.Index()] = watchdog.HealthBroken
	registers(gone, watchdog.DescriptorWord{}, chanmask.All)
	want("") // a program of an earlier version: who waits is not known
	if err := noteWaiter(lock); err != nil {
		t.Fatal(err)
	}
	want("host half: its daemon has waited for ")
	waitsIn(here, settleTime)
	want("the link X- is broken")
	registers(gone, watchdog.DescriptorWord{}, chanmask.All.Without(grid.XMinus))
	want("")
	gone.Links[grid.XMinus.Index()] = watchdog.HealthSick // as while it is restarted, or for months
	registers(gone, watchdog.DescriptorWord{}, chanmask.All)
	want("")
	gone.NeighbourHostFailed[grid.YPlus.Index()] = true
	registers(gone, watchdog.DescriptorWord{}, chanmask.All)
	want("the host half at the end of link Y+ is dead")
	waitsIn("pid:[1]", settleTime)
	want("") // the other pod is the one that waits
	waitsIn(here, settleTime)
	var parts watchdog.DescriptorWord
	parts.Neighbours[grid.YPlus.Index()].Memory = true
	registers(gone, parts, chanmask.All)
	want("") // it lives
	registers(gone, watchdog.DescriptorWord{}, chanmask.All)
	want("is dead")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	want("") // the waiting daemon has ended
}

// TestProbesAreNoHolders: processes that ask at the same time whether somebody holds a lock do not take one another for its holder.
func TestProbesAreNoHolders(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.StateDir = t.TempDir()
	d := &daemon{cfg: RunConfig{Agent: cfg}}
	lock, err := lockAlone(d.statePath(awaitedLock(fault.HalfHost)), "run")
	if err != nil {
		t.Fatal(err)
	}
	if !d.awaited(fault.HalfHost) {
		t.Error("the holder is not seen")
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	var probes sync.WaitGroup
	var seen atomic.Int32
	for range 4 {
		probes.Go(func() {
			for range 2000 {
				if d.awaited(fault.HalfHost) {
					seen.Add(1)
				}
			}
		})
	}
	probes.Wait()
	if n := seen.Load(); n > 0 {
		t.Errorf("%d probes of 8000 took another probe for a holder", n)
	}
}
