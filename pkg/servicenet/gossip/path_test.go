package gossip

import (
	"bytes"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestLargeBroadcastPassesPathThatDropsLargeFrames: the path drops all datagrams of more than 1,280 bytes and sends no ICMP, as a switch
// with a smaller MTU than the interfaces does.
func TestLargeBroadcastPassesPathThatDropsLargeFrames(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		requirements.Missing(t, "`nft` (package nftables) is not here: %v", err)
	}
	if !netnstest.Inside(t) {
		return
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader("table inet path { chain in { type filter hook input priority 0; " +
		"meta l4proto udp meta length > 1280 drop; }\n}\n")
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	for _, at := range []string{"127.0.0.1", "[::1]"} {
		got := make(chan []byte, 16)
		var members []*Net
		for i, port := range []string{":7701", ":7702"} {
			name := string(rune('a' + i))
			n, err := New(Config{Name: name, Bind: at + port, Join: []string{at + ":7701"}, Key: key(1), Timing: calm,
				Meta: Meta{Role: RoleNode, ID: name}, Logger: slog.New(slog.DiscardHandler), OnBroadcast: func(b []byte) { got <- b }})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = n.Close() }()
			members = append(members, n)
		}
		await(t, "the members know each other", func() bool { return len(members[0].Members()) == 2 && len(members[1].Members()) == 2 })
		large := bytes.Repeat([]byte{'x'}, servicenet.MaxDatagram)
		if err := members[0].Broadcast(large); err != nil {
			t.Fatal(err)
		}
		if b := <-got; !bytes.Equal(b, large) {
			t.Errorf("at %s a broadcast of %d bytes arrived with %d", at, len(large), len(b))
		}
	}
}
