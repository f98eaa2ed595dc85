package integration

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// During an upgrade a host half of a later version may share the node with this DNP half: messages of types, and mails
// about jobs of kinds, that it does not know are no fault.
func TestMailOfLaterVersion(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, noService)
	n.start(at0, fault.HalfDNP)
	state := n.cfgs[at0].StateDir
	f := n.awaitFile(filepath.Join(state, half.RegisterFile))
	defer func() { _ = f.Close() }()
	dir, err := os.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	var box net.Conn
	agenttest.Await(n.t, "the mailbox", func() bool {
		box, err = net.Dial("unixgram", fmt.Sprintf("/proc/self/fd/%d/dnp.mbox", dir.Fd()))
		return err == nil
	})
	defer func() { _ = box.Close() }()
	send := func(body ...byte) {
		t.Helper()
		if _, err := box.Write(binary.LittleEndian.AppendUint32(body, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))); err != nil {
			t.Fatal(err)
		}
	}
	refused := func() uint32 { return f.Counters()[half.OtherCounters+1] }
	bad := func() bool {
		v, err := f.Load(watchdog.AddrRDMA)
		return err != nil || v&watchdog.RDMAMailboxBad != 0
	}
	host, err := mailbox.Open(state, fault.HalfHost)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	taken := make(chan struct{}, 64)
	go func() {
		_ = host.Run(t.Context(), func(m mailbox.Message) {
			if mail, err := jobs.DecodeMail(m.Payload); m.Type == mailbox.Jobs && err == nil && mail.Kind == jobs.Taken && mail.Request == 5 {
				taken <- struct{}{}
			}
		})
	}()
	send(byte(mailbox.Jobs)+1, 1, 2, 3)
	send(byte(mailbox.Jobs), 99, 1)
	raise := jobs.Mail{Kind: jobs.Raise, Request: 5, Envelope: []byte("x")}
	if err := host.Send(mailbox.Message{Type: mailbox.Jobs, Payload: raise.Append(nil)}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-taken: // and so are those before it
	case <-time.After(bound):
		t.Fatal("no answer")
	}
	if bad() {
		t.Error("the DNP half calls itself sick of them")
	}
	send(0) // of no type
	agenttest.Await(n.t, "what is refused", func() bool { return refused() > 0 })
	if got := refused(); got != 1 {
		t.Errorf("%d messages are refused, want 1", got)
	}
	agenttest.Await(n.t, "RDMA exception", bad)
}
