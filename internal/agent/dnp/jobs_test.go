package dnp

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A mail without room in the mailbox gets its turn in milliseconds, though nothing else steps the half. The turns
// become rarer while the host half reads nothing.
func TestJobMailHasItsTurnSoon(t *testing.T) {
	dir := t.TempDir()
	host, err := mailbox.Open(dir, fault.HalfHost)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	own, err := mailbox.Open(dir, fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	d, now := &dnpHalf{box: own}, time.Unix(1, 0)
	sent := 0
	for ; len(d.jobMail.waiting) == 0; sent++ {
		if sent > 100 {
			t.Fatal("the mailbox takes everything")
		}
		d.mailJobs(now, jobs.Mail{Kind: jobs.Taken, Request: uint64(sent)})
	}
	for _, rest := range []int64{2, 4, 8, 16, 32, 64, 64} {
		if got := d.jobMail.again.Sub(now); got.Milliseconds() != rest {
			t.Errorf("the next turn is %s off, want %dms", got, rest)
		}
		d.mailWaiting(now) // a step before it changes nothing
		now = d.jobMail.again
		d.mailWaiting(now)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*agenttest.Bound)
	defer cancel()
	came := 0
	err = host.Run(ctx, func(mailbox.Message) {
		if d.mailWaiting(now); len(d.jobMail.waiting) > 0 {
			t.Error("it waits, though there is room")
		}
		if came++; came == sent {
			cancel()
		}
	})
	if came != sent {
		t.Errorf("%d of %d came: %v", came, sent, err)
	}
}
