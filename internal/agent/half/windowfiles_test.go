package half

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// TestCardWithoutItsDiskHasNoList: the list of revoked certificates that a former process of the other half had on disk does not count
// for the next one, which may have lost the disk. Nor do the former one's messages that still wait.
func TestCardWithoutItsDiskHasNoList(t *testing.T) {
	card, now := halfcore.NewFileExchange(fault.HalfDNP), time.Unix(1, 0)
	card.Hold(halfcore.HeldFile{ID: halfcore.FileRevoked, Version: 7, Data: []byte("list"), Most: 100})
	f := &windowFiles{in: make(chan fileMail, 4), core: halfcore.NewFileExchange(fault.HalfHost)}
	w := &Window{files: f}
	f.newHolder()
	for range 2 {
		f.take(card.Tick()[0])
	}
	f.hear(now, <-f.in)
	if got := w.Denied(9); got != 7 {
		t.Fatalf("version %d, want 7", got)
	}
	f.newHolder()
	if got := w.Denied(9); got != 0 {
		t.Errorf("before the next process has stated its files: version %d", got)
	}
	f.hear(now, <-f.in)
	if got := w.Denied(9); got != 0 {
		t.Errorf("by a message of the former process: version %d", got)
	}
	f.take(card.Tick()[0])
	f.hear(now, <-f.in)
	if got := w.Denied(9); got != 7 {
		t.Errorf("with its disk: version %d, want 7", got)
	}
}
