package halfcore

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const panicLine = "Kernel panic - not syncing: sysrq triggered crash"

var sender = netip.MustParseAddr("10.7.0.2")

func receiver() *Netconsole {
	return NewNetconsole(map[netip.Addr]fault.NodeID{sender: "n1-0-0"}, 6)
}

// TestNetconsoleFindsLastWords gives datagrams of one machine to a receiver.
func TestNetconsoleFindsLastWords(t *testing.T) {
	tests := map[string]struct {
		give    []string
		end     BootEnd
		line    string
		context []string
	}{
		"plain": {[]string{"[    9.1] sysrq: Trigger a crash\n", "[    9.2] " + panicLine + "\n", "[    9.3] CPU: 0 PID: 1\n"},
			BootPanic, panicLine, []string{"sysrq: Trigger a crash", "CPU: 0 PID: 1"}},
		"plain in pieces": {[]string{"[    9.2] Kernel panic - not syn", "cing: sysrq triggered crash\n"}, BootPanic, panicLine, nil},
		"several lines":   {[]string{"a\nb\n" + panicLine + "\nc\nd\ne\nf\n"}, BootPanic, panicLine, []string{"b", "c", "d", "e"}},
		"extended": {[]string{"4,11,9100000,-;sysrq: Trigger a crash\n", "0,12,9200001,-;" + panicLine + "\n SUBSYSTEM=x\n"},
			BootPanic, panicLine, []string{"sysrq: Trigger a crash"}},
		"extended with release": {[]string{"6.1.0,0,12,9200001,-;" + panicLine + "\n"}, BootPanic, panicLine, nil},
		"extended in fragments": {[]string{"0,12,9,-,ncfrag=0/49;Kernel panic - not syn", "0,12,9,-,ncfrag=22/49;cing: sysrq triggered crash"},
			BootPanic, panicLine, nil},
		"panic after oops": {[]string{"BUG: unable to handle\n" + panicLine + "\n"}, BootPanic, panicLine, nil},
		"lockup":           {[]string{"watchdog: BUG: soft lockup - CPU#0 stuck\n"}, BootLockup, "watchdog: BUG: soft lockup - CPU#0 stuck", nil},
		"control characters": {[]string{"a\x1b[2Jb\n" + panicLine + "\x07\xff\n"},
			BootPanic, panicLine + " ?", []string{"a [2Jb"}},
		"quoted": {[]string{"app: " + panicLine + "\n"}, 0, "", nil},
	}
	for name, tt := range tests {
		n, now, found := receiver(), time.Unix(1000, 0), false
		for _, b := range tt.give {
			found = n.Packet(now, sender, []byte(b)) || found
		}
		words := n.Words(now)
		if tt.end == 0 {
			if found || words != nil {
				t.Errorf("%s: %v", name, words)
			}
			continue
		}
		if !found || len(words) != 1 {
			t.Errorf("%s: found %v, %v", name, found, words)
			continue
		}
		w := words[0]
		if w.GetNode() != "n1-0-0" || w.GetFrom() != "10.7.0.2" || w.GetEnd() != lofamov1.BootEnd(tt.end) || w.GetLine() != tt.line ||
			w.GetSerial() == 0 || len(w.GetContext())+len(tt.context) > 0 && !reflect.DeepEqual(w.GetContext(), tt.context) {
			t.Errorf("%s: %v", name, w)
		}
	}
}

// TestNetconsoleTellsOneDeathOnce: the same error counts again only after some time, or from another boot.
func TestNetconsoleTellsOneDeathOnce(t *testing.T) {
	type at struct{ arrives, uptime time.Duration } // uptime < 0: the line has no time stamp
	const s = time.Second
	for name, tt := range map[string]struct {
		lines []at
		want  []bool
	}{
		"one boot":               {[]at{{0, 9 * s}, {s, 10 * s}, {59 * s, 68 * s}, {60 * s, 69 * s}}, []bool{true, false, false, true}},
		"no time stamps":         {[]at{{0, -1}, {s, -1}, {59 * s, -1}, {60 * s, -1}}, []bool{true, false, false, true}},
		"reboots":                {[]at{{0, 90 * s}, {20 * s, 9 * s}, {50 * s, 25 * s}}, []bool{true, true, true}},
		"copies of one packet":   {[]at{{0, 9 * s}, {s, 9 * s}, {6 * s, 9 * s}}, []bool{true, false, false}},
		"a boot takes some time": {[]at{{0, 90 * s}, {s, s / 2}, {2 * s, s}}, []bool{true, false, false}},
	} {
		n, now := receiver(), time.Unix(1000, 0)
		for i, l := range tt.lines {
			line := "Kernel panic - not syncing: Fatal exception\n"
			if l.uptime >= 0 {
				line = fmt.Sprintf("[%12.6f] %s", l.uptime.Seconds(), line)
			}
			if got := n.Packet(now.Add(l.arrives), sender, []byte(line)); got != tt.want[i] {
				t.Errorf("%s: line %d counts: %v, want %v", name, i, got, tt.want[i])
			}
		}
	}
}

// TestNetconsoleFollowsNeighbours: a neighbour that is replaced is a stranger, and the new one is known. Lines of those that stay go on.
func TestNetconsoleFollowsNeighbours(t *testing.T) {
	n, now, next := receiver(), time.Unix(1000, 0), netip.MustParseAddr("10.7.0.3")
	n.Packet(now, sender, []byte("Kernel panic - not "))
	n.SetSenders(map[netip.Addr]fault.NodeID{sender: "n1-0-0", next: "spare-0"})
	if !n.Packet(now, sender, []byte("syncing: x\n")) || !n.Packet(now, next, []byte(panicLine+"\n")) {
		t.Errorf("%v", n.Words(now))
	}
	n.SetSenders(map[netip.Addr]fault.NodeID{sender: "spare-1"})
	if words := n.Words(now); len(words) > 0 {
		t.Errorf("last words of former neighbours: %v", words)
	}
	if n.Packet(now, next, []byte(panicLine+"\n")) || !n.Packet(now, sender, []byte(panicLine+"\n")) {
		t.Error("a former neighbour is known, or a new one at its address is not")
	}
	if words := n.Words(now); len(words) != 1 || words[0].GetNode() != "spare-1" {
		t.Errorf("%v", words)
	}
}

// TestNetconsoleStatesOldErrorOnce: the last words of one machine do not restate those of another machine, which has perhaps booted since.
// A recent error keeps its age.
func TestNetconsoleStatesOldErrorOnce(t *testing.T) {
	other := netip.MustParseAddr("10.7.0.3")
	for apart, want := range map[time.Duration][]uint32{time.Minute: {50, 60050}, 3 * time.Minute: {50}} {
		n := NewNetconsole(map[netip.Addr]fault.NodeID{sender: "n1-0-0", other: "n2-0-0"}, 6)
		now := time.Unix(1000, 0)
		for _, from := range [...]netip.Addr{sender, other} {
			if !n.Packet(now, from, []byte(panicLine+"\n")) {
				t.Fatal("no last words")
			}
			now = now.Add(apart)
		}
		words := n.Words(now.Add(50*time.Millisecond - apart))
		var ages []uint32
		for _, w := range words {
			ages = append(ages, w.GetAgeMs())
		}
		if words[0].GetNode() != "n2-0-0" || !slices.Equal(ages, want) {
			t.Errorf("errors %s apart: ages %d ms, want %d ms: %v", apart, ages, want, words)
		}
	}
}

// TestNetconsoleTakesLineWithoutItsEnd: the machine was reset before the end of its last line.
func TestNetconsoleTakesLineWithoutItsEnd(t *testing.T) {
	n, now := receiver(), time.Unix(1000, 0)
	if n.Packet(now, sender, []byte(panicLine)) {
		t.Error("a line counted before its end")
	}
	if !n.Packet(now.Add(2*time.Second), sender, []byte("[    0.0] Linux version 6.1\n")) {
		t.Error("the unfinished line was lost")
	}
}

// TestNetconsoleBoundsHostileSenders: strangers, floods, huge lines and garbage are counted and bounded.
func TestNetconsoleBoundsHostileSenders(t *testing.T) {
	n, now := receiver(), time.Unix(1000, 0)
	if n.Packet(now, netip.MustParseAddr("10.7.0.9"), []byte(panicLine+"\n")) || n.Words(now) != nil {
		t.Error("a stranger was believed")
	}
	n.Packet(now, sender, []byte(" \n"))
	n.Packet(now, sender, []byte("0,12,9,-,ncfrag=22/49;cing"))
	for range 100 {
		n.Packet(now, sender, []byte(strings.Repeat("x", 1000)))
	}
	n.Packet(now, sender, []byte("\n"))
	for range 2 * netconsoleBurst {
		n.Packet(now, sender, []byte("y\n"))
	}
	want := NetconsoleCounts{Lines: netconsoleBurst, Strangers: 1, Flooded: netconsoleBurst + 1, Cut: 1, Malformed: 2}
	if n.Counts() != want {
		t.Errorf("%+v, want %+v", n.Counts(), want)
	}
	if c := cap(n.senders[sender].part); c > 2*netconsoleLine {
		t.Errorf("holds %d bytes", c)
	}
}

// TestNetconsoleFloodCostsNoLines: a datagram above its sender's rate is counted, but not cut into lines.
func TestNetconsoleFloodCostsNoLines(t *testing.T) {
	n, now := receiver(), time.Unix(1000, 0)
	flood := []byte(strings.Repeat("a\n", 500))
	n.Packet(now, sender, flood)
	if got, want := n.Counts(), (NetconsoleCounts{Lines: netconsoleBurst, Flooded: 500 - netconsoleBurst}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if allocs := testing.AllocsPerRun(100, func() { n.Packet(now, sender, flood) }); allocs > 0 {
		t.Errorf("a datagram without room costs %.0f allocations, want none", allocs)
	}
	n.Packet(now, sender, []byte("no end of line"))
	if got, want := n.Counts().Flooded, uint64(500-netconsoleBurst+101*500+1); got != want {
		t.Errorf("%d lines were refused, want %d", got, want)
	}
	if now = now.Add(time.Second); !n.Packet(now, sender, []byte(panicLine+"\n"+strings.Repeat("a\n", 500))) {
		t.Error("a panic after the flood was not found")
	}
	if got := n.Counts().Lines; got != netconsoleBurst+netconsoleRate {
		t.Errorf("%d lines were taken after a second, want %d", got, netconsoleBurst+netconsoleRate)
	}
}

func FuzzNetconsole(f *testing.F) {
	f.Add([]byte("0,12,9,-,ncfrag=0/49;Kernel panic"), []byte("0,12,9,-,ncfrag=12/49;x\n"))
	f.Add([]byte(panicLine+"\n"), []byte("\x00\xff;,,,,"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		n, now := receiver(), time.Unix(1000, 0)
		for _, p := range [][]byte{a, b, []byte(panicLine), []byte("\nx\n")} {
			n.Packet(now, sender, p)
		}
		for _, w := range n.Words(now) {
			if err := servicenet.CheckHalfHealth(&lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{w}}); err != nil {
				t.Error(err)
			}
			if !utf8.ValidString(w.GetLine()) {
				t.Errorf("%q", w.GetLine())
			}
		}
	})
}
