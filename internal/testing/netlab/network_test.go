package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// bound is the maximum wait of a test.
const bound = time.Minute

// need skips a test where no network can be made, saying why; where everything has to be there it
// fails.
func need(t *testing.T) {
	t.Helper()
	if missing := Missing(); missing != "" {
		requirements.Missing(t, "network namespaces: missing: %s", missing)
	}
}

func connect(t *testing.T, s Shape) *Network {
	t.Helper()
	need(t)
	n, err := Connect(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if left, err := spacesWith(n.claim.prefix()); err != nil || len(left) > 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
	})
	return n
}

// in calls do in the network namespace of a member. A socket that it makes stays there.
func in(t *testing.T, n *Network, member string, do func() error) {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- func() error {
			f, err := os.Open(filepath.Join(spacesDir, n.Namespace(member)))
			if err != nil {
				return err
			}
			defer f.Close()
			if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return do()
		}()
	}()
	if err := <-result; err != nil {
		t.Fatalf("in the namespace of %s: %v", member, err)
	}
}

// post is a UDP socket of a member.
type post struct {
	t    *testing.T
	conn *net.UDPConn
	addr netip.AddrPort
}

func newPost(t *testing.T, n *Network, member, iface string) post {
	t.Helper()
	w, err := n.wireOf(plug{member, iface})
	if err != nil {
		t.Fatal(err)
	}
	p := post{t: t, addr: netip.AddrPortFrom(w.own.addr.Addr(), 5555)}
	in(t, n, member, func() error {
		p.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(p.addr))
		return err
	})
	t.Cleanup(func() { _ = p.conn.Close() })
	// The buffer must exceed any limit of the machine: datagrams wait here until the test reads them.
	raw, err := p.conn.SyscallConn()
	must(t, err)
	var serr error
	must(t, raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}))
	must(t, serr)
	return p
}

func (p post) send(to post, b ...byte) {
	p.t.Helper()
	if _, err := p.conn.WriteToUDPAddrPort(b, to.addr); err != nil {
		p.t.Fatal(err)
	}
}

// receive returns the next datagram, or nil when none comes in time.
func (p post) receive(wait time.Duration) []byte {
	p.t.Helper()
	b := make([]byte, 2048)
	_ = p.conn.SetReadDeadline(time.Now().Add(wait))
	n, err := p.conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return b[:n]
}

// reaches reports whether a message from a arrives at b. The networks keep order and are much faster than wait; earlier
// messages are skipped.
func reaches(a, b post, mark byte, wait time.Duration) bool {
	a.t.Helper()
	a.send(b, mark)
	for {
		switch got := b.receive(wait); {
		case got == nil:
			return false
		case got[0] == mark:
			return true
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryNetworkFaultHasItsEffect tries every fault of the network on bare sockets.
func TestEveryNetworkFaultHasItsEffect(t *testing.T) {
	begin := time.Now()
	n := connect(t, Shape{Dims: dims(t, "2x2x1"), Supervisors: 2, ServiceNetworks: 2})
	t.Logf("made in %v", time.Since(begin))
	const short = 60 * time.Millisecond
	node, sup := newPost(t, n, "n0-0-0", "svc0"), newPost(t, n, "sup-0", "svc0")
	second, supSecond := newPost(t, n, "n0-0-0", "svc1"), newPost(t, n, "sup-0", "svc1")
	supOther := newPost(t, n, "sup-1", "svc0")
	inner, innerOther := newPost(t, n, "sup-0", "sup0"), newPost(t, n, "sup-1", "sup0")
	xPlus, peer := newPost(t, n, "n0-0-0", "tx+"), newPost(t, n, "n1-0-0", "tx-")
	mark := byte(0)
	ways := func(what string, want string, pairs ...[2]post) {
		t.Helper()
		var got strings.Builder
		for i, p := range pairs {
			mark++
			wait := bound
			if want[i] == '.' {
				wait = short
			}
			if reaches(p[0], p[1], mark, wait) {
				got.WriteString("x")
			} else {
				got.WriteString(".")
			}
		}
		if got.String() != want {
			t.Errorf("%s: what arrives is %q, want %q", what, got.String(), want)
		}
	}
	// out, in, out and in on the second network, between supervisors on both, along the link.
	all := [][2]post{
		{node, sup}, {sup, node}, {second, supSecond}, {supSecond, second},
		{sup, supOther}, {inner, innerOther}, {xPlus, peer}, {peer, xPlus},
	}
	ways("healthy", "xxxxxxxx", all...)
	must(t, n.CutService("n0-0-0"))
	ways("service cut", "....xxxx", all...)
	must(t, n.HealService("0,0,0"))
	ways("service healed", "xxxxxxxx", all...)
	must(t, n.CutServiceOneWay("n0-0-0", Out))
	ways("service cut out", ".x.xxxxx", all...)
	must(t, n.HealService("n0-0-0"))
	must(t, n.CutServiceOneWay("n0-0-0", In))
	ways("service cut in", "x.x.xxxx", all...)
	must(t, n.HealNetwork())
	must(t, n.Cut("n0-0-0", "svc1", Both))
	ways("second network cut", "xx..xxxx", all...)
	must(t, n.HealNetwork())
	must(t, n.CutSupervisors())
	ways("supervisors cut", ".....xxx", all...)
	must(t, n.HealSupervisors())
	must(t, n.CutSupervisors("sup-1"))
	ways("one supervisor cut", "xxxx.xxx", all...)
	must(t, n.HealNetwork())
	must(t, n.Part([]string{"n0-0-0"}, []string{"sup-0"}))
	ways("node and supervisor parted", "....xxxx", all...)
	ways("the node and the other supervisor", "xx", [2]post{node, supOther}, [2]post{supOther, node})
	must(t, n.HealNetwork())
	must(t, n.CutLink("n0-0-0", 1, Out)) // X+
	ways("link cut out", "xxxxxx.x", all...)
	must(t, n.HealLink("n0-0-0", 1))
	ways("healed at last", "xxxxxxxx", all...)
}

func TestLossDamageAndCounts(t *testing.T) {
	n := connect(t, Shape{Dims: dims(t, "2"), Supervisors: 1})
	a, b := newPost(t, n, "n0-0-0", "tx+"), newPost(t, n, "n1-0-0", "tx-")
	other, sup := newPost(t, n, "n1-0-0", "svc0"), newPost(t, n, "sup-0", "svc0")
	traffic := func(member, iface string) Traffic {
		t.Helper()
		c, err := n.Traffic(member, iface)
		must(t, err)
		return c
	}
	payload := func(i int) []byte { return append([]byte{byte(i), byte(i >> 8)}, make([]byte, 200)...) }
	// flow sends some datagrams and a mark, and returns those received before the mark.
	flow := func(count int, heal func() error) (got [][]byte) {
		t.Helper()
		for i := range count {
			a.send(b, payload(i)...)
		}
		must(t, heal())
		a.send(b, []byte("end")...)
		for {
			p := b.receive(bound)
			if p == nil {
				t.Fatal("the mark did not arrive")
			}
			if string(p) == "end" {
				return got
			}
			got = append(got, p)
		}
	}

	if !reaches(a, b, 'x', bound) { // and from now on the addresses are resolved
		t.Fatal("nothing arrives")
	}
	before := traffic("n0-0-0", "tx+")
	must(t, n.Lose("n0-0-0", "tx+", Out, 50))
	// Small enough for the socket's buffer, large enough for chance: 5 deviations of 10 each.
	got := flow(400, func() error { return n.Heal("n0-0-0", "tx+") })
	since := traffic("n0-0-0", "tx+").Since(before)
	if len(got) < 150 || len(got) > 250 {
		t.Errorf("%d of 400 passed a loss of one half", len(got))
	}
	if want := uint64(len(got) + 1); since.Out.Passed != want || since.Out.Lost != 400-uint64(len(got)) || since.In != (Count{}) {
		t.Errorf("counted %+v, want %d passed", since, want)
	}

	before = traffic("n1-0-0", "tx-")
	must(t, n.Corrupt("n0-0-0", "tx+", Out, 100))
	got = flow(200, func() error { return n.Corrupt("n0-0-0", "tx+", Out, 0) })
	since = traffic("n1-0-0", "tx-").Since(before)
	damaged := 0
	for i, p := range got {
		if want := payload(i); bits(p, want) == 1 {
			damaged++
		}
	}
	if len(got) != 200 || damaged != 200 || since.In.Damaged != 200 {
		t.Errorf("of %d that arrived %d have one bit flipped, %d are counted", len(got), damaged, since.In.Damaged)
	}

	if c := traffic("n1-0-0", "svc0"); c != (Traffic{}) {
		t.Errorf("nobody used the service network, yet %+v", c)
	}
	other.send(sup, 1)
	if sup.receive(bound) == nil {
		t.Error("nothing arrives")
	}
	if c := traffic("n1-0-0", "svc0"); c.Out.Passed != 1 || c.Out.Bytes != 29 { // IP and UDP headers and 1
		t.Errorf("one datagram is counted as %+v", c)
	}
}

func bits(a, b []byte) int {
	n := 0
	for i := range a {
		for x := a[i] ^ b[i]; x != 0; x &= x - 1 {
			n++
		}
	}
	return n
}

func TestPulledPlugLosesCarrier(t *testing.T) {
	n := connect(t, Shape{Dims: dims(t, "2"), Supervisors: 1})
	read := func(member, file string) string {
		t.Helper()
		argv := n.Command(member, []string{"cat", "/sys/class/net/" + file})
		b, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", file, err, b)
		}
		return strings.TrimSpace(string(b))
	}
	for _, plug := range []plug{{"n0-0-0", "svc0"}, {"n0-0-0", "tx+"}, {"sup-0", "sup0"}} {
		must(t, n.CarrierDown(plug.member, plug.iface))
		if got := read(plug.member, plug.iface+"/carrier"); got != "0" {
			t.Errorf("%v: carrier %s with the cable pulled", plug, got)
		}
		must(t, n.CarrierUp(plug.member, plug.iface))
		if got := read(plug.member, plug.iface+"/carrier"); got != "1" {
			t.Errorf("%v: carrier %s with the cable back", plug, got)
		}
	}
	is := func(what, want string) {
		t.Helper()
		got := read("n0-0-0", "svc0/operstate")
		for end := time.Now().Add(bound); got != want && time.Now().Before(end); { // the kernel updates it later
			time.Sleep(10 * time.Millisecond)
			got = read("n0-0-0", "svc0/operstate")
		}
		if got != want {
			t.Errorf("%s: svc0 is %s, want %s", what, got, want)
		}
	}
	must(t, n.InterfaceDown("n0-0-0", "svc0"))
	is("set down", "down")
	must(t, n.InterfaceUp("n0-0-0", "svc0"))
	is("set up", "up")
	must(t, n.CarrierDown("n0-0-0", "svc0"))
	must(t, n.InterfaceDown("n0-0-0", "tx+"))
	must(t, n.TakeAddress("n0-0-0", "svc0"))
	if a := addresses(t, n, "n0-0-0", "svc0"); a != "" {
		t.Errorf("address %s is not taken", a)
	}
	must(t, n.TakeAddress("n0-0-0", "svc0")) // already
	must(t, n.HealNetwork())
	is("all healed", "up")
	if a := addresses(t, n, "n0-0-0", "svc0"); !strings.Contains(a, " 10.220.0.1/24 ") {
		t.Errorf("address %q is not given back", a)
	}
	downs := func() int {
		t.Helper()
		n, err := strconv.Atoi(read("n0-0-0", "svc0/carrier_down_count"))
		must(t, err)
		return n
	}
	before := downs()
	must(t, n.Flap(t.Context(), "n0-0-0", "svc0", 20*time.Millisecond, 3))
	if lost := downs() - before; lost != 3 {
		t.Errorf("the carrier was lost %d times, want 3", lost)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Flap(ctx, "n0-0-0", "svc0", time.Hour, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("flapping that was called off: %v", err)
	}
	if got := read("n0-0-0", "svc0/carrier"); got != "1" {
		t.Error("the cable is not back")
	}
}

// addresses lists the IPv4 addresses of an interface.
func addresses(t *testing.T, n *Network, member, iface string) string {
	t.Helper()
	argv := n.Command(member, []string{"ip", "-4", "-o", "addr", "show", "dev", iface})
	b, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("addresses of %s of %s: %v: %s", iface, member, err, b)
	}
	return string(b)
}

func TestInvalidNetworkFaultIsRefused(t *testing.T) {
	n := connect(t, Shape{Dims: dims(t, "2"), Supervisors: 1})
	for _, tc := range []struct {
		err  error
		want string
	}{
		{n.CutService("n9-9-9"), `member "n9-9-9": neither a supervisor nor a node of this 2x1x1 network`},
		{n.CutService("3,0,0"), `member "3,0,0"`},
		{n.Cut("n0-0-0", "eth0", In), `interface "eth0" of n0-0-0: want one of svc0, tx+, tx-`},
		{n.Cut("n0-0-0", "svc0", 0), "way Way(0): want in, out or both"},
		{n.Lose("n0-0-0", "svc0", In, 101), "given 101 percent: want 0 to 100"},
		{n.Corrupt("n0-0-0", "svc0", In, 0.01), "given 0.01 percent: want 0, or at least 0.1"},
		{n.CarrierDown("sup-7", "svc0"), `member "sup-7"`},
		{n.InterfaceDown("n0-0-0", "svc7"), `interface "svc7" of n0-0-0`},
		{n.TakeAddress("n0-0-0", "svc7"), `interface "svc7" of n0-0-0`},
		{n.Part([]string{"n0-0-0"}, []string{"sup-7"}), `member "sup-7"`},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("error %v, want %q", tc.err, tc.want)
		}
	}
	if _, err := n.Traffic("net", "svc0-n0"); err == nil {
		t.Error("the hub is no member")
	}
}

// envHold makes this test program make a network, start a process in it and wait to be killed.
const envHold = "LOFAMO_NETLAB_TEST_HOLD"

// TestKilledProcessLeavesNothing kills a process that has a network, with signal 9: the next one
// clears it away.
func TestKilledProcessLeavesNothing(t *testing.T) {
	if os.Getenv(envHold) != "" {
		hold(t)
	}
	need(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcessLeavesNothing$", "-test.v")
	cmd.Env = append(os.Environ(), envHold+"=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var prefix, dir string
	var sleeper int
	b := make([]byte, 4096)
	text := ""
	for !strings.Contains(text, "holding ") || !strings.HasSuffix(text, "\n") {
		k, err := out.Read(b)
		if text += string(b[:k]); err != nil {
			_ = cmd.Wait()
			t.Fatalf("the holder ended: %v\n%s", err, text)
		}
	}
	_, told, _ := strings.Cut(text, "holding ")
	if _, err := fmt.Sscan(told, &prefix, &dir, &sleeper); err != nil {
		t.Fatal(err)
	}
	must(t, sweep(t.Context()))
	if left, err := spacesWith(prefix); err != nil || len(left) != 4 {
		t.Fatalf("a living process' network was cleared away: %v, %v", left, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()

	n := connect(t, Shape{Dims: dims(t, "2"), Supervisors: 1})
	if left, err := spacesWith(prefix); err != nil || len(left) > 0 {
		t.Errorf("namespaces of a dead process: %v, %v", left, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a dead process: %v", err)
	}
	// It may stay a zombie without a reaper, but in no namespace.
	lives := func() bool {
		_, ok := inode(fmt.Sprintf("/proc/%d/ns/net", sleeper))
		return ok
	}
	for end := time.Now().Add(bound); lives() && time.Now().Before(end); { // a killed process may take a moment to end
		time.Sleep(10 * time.Millisecond)
	}
	if lives() {
		t.Errorf("process %d lives on in a dead network", sleeper)
	}
	if _, err := n.Traffic("sup-0", "sup0"); err != nil {
		t.Error(err)
	}
}

func hold(t *testing.T) {
	n, err := Connect(t.Context(), Shape{Dims: dims(t, "2"), Supervisors: 1})
	must(t, err)
	must(t, os.Mkdir(n.directory(), 0o755))
	argv := n.Command("n0-0-0", []string{"sleep", "600"})
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	must(t, cmd.Start())
	for name := ""; name != "sleep"; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		must(t, err)
		name = strings.TrimSpace(string(b))
	}
	fmt.Printf("holding %s %s %d\n", n.claim.prefix(), n.directory(), cmd.Process.Pid)
	<-time.After(5 * time.Minute)
	t.Fatal("nobody killed the holder")
}
