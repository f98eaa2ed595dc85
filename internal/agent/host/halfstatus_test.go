package host

import (
	"testing"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// The DNP half sends the end and the begin of its certificate in 16 bytes, and an earlier version only the end in 8.
// Other lengths are ignored.
func TestSpanOfOtherHalfsCertificateIsRead(t *testing.T) {
	h := &hostHalf{}
	end := []byte{0, 0, 0, 0, 0x6c, 0xe3, 0, 1}
	give := func(b []byte) *half.Validity {
		h.onMessage(mailbox.Message{Type: mailbox.Certificate, Payload: b})
		return h.dnpCert.Load()
	}
	for _, b := range [][]byte{{1}, nil, make([]byte, 9)} {
		if got := give(b); got != nil {
			t.Errorf("%x: %+v, want nothing", b, *got)
		}
	}
	if got := give(end); got == nil || *got != (half.Validity{Ends: 0x6ce30001}) {
		t.Errorf("end alone: %+v", got)
	}
	want := half.Validity{Ends: 0x6ce30001, Begins: 0x6ce30000}
	if got := give(append(end, 0, 0, 0, 0, 0x6c, 0xe3, 0, 0)); got == nil || *got != want {
		t.Errorf("end and begin: %+v, want %+v", got, want)
	}
	if got := give(make([]byte, 17)); *got != want {
		t.Errorf("17 bytes: %+v, want %+v as before", *got, want)
	}
}
