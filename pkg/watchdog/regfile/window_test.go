package regfile_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile/pagetest"
)

// TestContractOfSharedPage runs the contract against one register file, and against two whose words a function carries. The agent's
// tests run it against the window over sockets.
func TestContractOfSharedPage(t *testing.T) {
	t.Run("one file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "registers")
		pagetest.Contract(t, pagetest.Page{Host: open(t, path, fault.HalfHost), DNP: open(t, path, fault.HalfDNP), HostPath: path,
			Wrote: func(fault.Half) {}})
	})
	t.Run("two files", func(t *testing.T) {
		here, there := filepath.Join(t.TempDir(), "registers"), filepath.Join(t.TempDir(), "registers")
		host, dnp := open(t, here, fault.HalfHost), open(t, there, fault.HalfDNP)
		pagetest.Contract(t, pagetest.Page{Host: host, DNP: dnp, HostPath: here,
			Wrote: joined(t, host, open(t, there, fault.HalfHost), dnp, open(t, here, fault.HalfDNP))})
	})
}

func open(t *testing.T, path string, half fault.Half) *regfile.File {
	t.Helper()
	f, err := regfile.Open(path, half)
	must(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// joined carries the words of the host half from its own file to the one at the other end, and those of the DNP half back.
func joined(t *testing.T, host, hostCopy, dnp, dnpCopy *regfile.File) func(fault.Half) {
	start := time.Unix(1000, 0)
	window := func(life uint64) *watchdog.Window {
		return watchdog.NewWindow(watchdog.WindowConfig{TRead: time.Second, Misses: 2, Life: life}, start)
	}
	atHost, atDNP, seq := window(1), window(2), uint64(0)
	return func(h fault.Half) {
		from, to, life, end := host, hostCopy, uint64(1), atDNP
		if h == fault.HalfDNP {
			from, to, life, end = dnp, dnpCopy, 2, atHost
		}
		b, err := watchdog.AppendStatement(nil, life, watchdog.BootID{byte(h)}, from.AppendWords(nil, h, true))
		must(t, err)
		seq++
		out, err := end.Hear(start, watchdog.WindowFrame{Session: 1, Seq: seq, Epoch: uint64(from.Epoch(h)), Payload: b})
		must(t, err)
		epoch, _ := end.Peer()
		must(t, to.SetEpoch(h, fault.Epoch(epoch)))
		must(t, to.StoreWords(out.Words))
	}
}
