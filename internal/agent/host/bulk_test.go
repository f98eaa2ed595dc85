package host

import (
	"net/netip"
	"testing"
)

// A reply goes to the address that asked, by the interface that reaches it, even if the supervisor has meanwhile sent
// from another address.
func TestBulkReplyUsesAskingAddress(t *testing.T) {
	zero, one, other := netip.MustParseAddrPort("10.0.0.9:7000"), netip.MustParseAddrPort("10.1.0.9:7000"),
		netip.MustParseAddrPort("10.9.0.9:7000")
	h := &hostHalf{targets: []map[string]netip.AddrPort{{"sup-0": zero}, {"sup-0": one}, {"sup-0": one}}}
	for _, tc := range []struct {
		heard uint8
		to    netip.AddrPort
		want  uint8
	}{
		{0, zero, 0}, {1, zero, 0}, {0, one, 1}, {1, one, 1}, {2, one, 2},
		{2, other, 2}, // of a socket that the configuration does not name
	} {
		b := &hostBulk{h: h, heard: map[string]uint8{"sup-0": tc.heard}}
		if got := b.interfaceFor("sup-0", tc.to); got != tc.want {
			t.Errorf("to %s, heard by %d: by interface %d, want %d", tc.to, tc.heard, got, tc.want)
		}
	}
}
