package dnp

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A link that the node gets while it runs is opened under the half's mutex: a disk that hangs would hang the half. A FIFO without a writer
// stands for a file on such a disk.
func TestLinkIsOpenedWithoutTheDisk(t *testing.T) {
	const dir = grid.XPlus
	cfg := agenttest.NodeConfig(t)
	d, _ := halfWithSession(t, cfg, dir)
	if err := d.links[dir.Index()].Close(); err != nil {
		t.Fatal(err)
	}
	d.links[dir.Index()], d.runLink = nil, func(*udplink.Link) {}
	if err := os.Remove(cfg.TLS.CA); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(cfg.TLS.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.openLink(dir)
	}()
	select {
	case <-opened:
	case <-time.After(time.Minute): // only a failure lasts so long
		t.Fatal("the half waits for a file under its mutex")
	}
	if l := d.links[dir.Index()]; l == nil {
		t.Error(d.unopened[dir.Index()])
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
}
