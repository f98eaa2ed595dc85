package packagetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// apart starts a cluster without any outside route, queries it, stops it, and prints the kernel's counters of packets
// without a route: before and after a packet that the script sends itself.
const apart = `set -e
ip link set lo up
"$1" up --dir "$2" --dims 2x2x1 --supervisors 1 --detach
"$1" --dir "$2" get nodes
"$1" --dir "$2" get supervisors
"$1" down --dir "$2"
cat /proc/net/snmp
cat /proc/net/snmp6 || true
(exec 3<>/dev/tcp/192.0.2.1/80) 2>/dev/null || true
(exec 3<>/dev/tcp/2001:db8::1/80) 2>/dev/null || true
echo CONTROL
cat /proc/net/snmp
cat /proc/net/snmp6 || true
`

// TestClusterConnectsToNothingOutside: the software connects to nothing outside. A cluster starts in a network with
// only the loopback interface, and none of its processes tries to send to another address.
func TestClusterConnectsToNothingOutside(t *testing.T) {
	need(t, "unshare", "ip", "bash")
	if os.Geteuid() != 0 {
		requirements.Missing(t, "not root")
	}
	dir, err := os.MkdirTemp("", "lofamo-apart-") // not t.TempDir: its name is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	ctl := abs(t, filepath.Join(bin(t), "lofamoctl"))
	t.Cleanup(func() {
		_ = exec.Command(ctl, "down", "--dir", filepath.Join(dir, "c")).Run() //nolint:noctx // of a test that has failed
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	out := output(t, "unshare", "--net", "bash", "-c", apart, "bash", ctl, filepath.Join(dir, "c"))
	ours, control, _ := strings.Cut(out, "CONTROL")
	if strings.Count(ours, "NORMAL") < 5 {
		t.Errorf("no cluster of four nodes and a supervisor:\n%s", ours)
	}
	if n := noRoutes(t, ours); n != 0 {
		t.Errorf("%d attempts to send where no route leads\n%s", n, ours)
	}
	made := 1
	if sixth() {
		made++
	}
	if n := noRoutes(t, control); n != made {
		t.Errorf("%d attempts are counted of the %d that were made: this test sees nothing", n, made)
	}
}

// sixth reports whether the kernel has IPv6.
func sixth() bool {
	_, err := os.Stat("/proc/net/snmp6")
	return err == nil
}

// noRoutes adds up OutNoRoutes of both protocols, as far as the kernel has them.
func noRoutes(t *testing.T, counters string) int {
	t.Helper()
	var names, values []string
	for l := range strings.Lines(counters) {
		if f := strings.Fields(l); len(f) > 0 && f[0] == "Ip:" {
			names, values = values, f // the second line has the numbers
		}
	}
	six := regexp.MustCompile(`Ip6OutNoRoutes\s+(\d+)`).FindStringSubmatch(counters)
	n, found := 0, 0
	for i, name := range names {
		if name == "OutNoRoutes" {
			v, err := strconv.Atoi(values[i])
			if err != nil {
				t.Fatal(err)
			}
			n, found = n+v, found+1
		}
	}
	if six != nil {
		v, err := strconv.Atoi(six[1])
		if err != nil {
			t.Fatal(err)
		}
		n, found = n+v, found+1
	}
	if want := map[bool]int{false: 1, true: 2}[sixth()]; found != want {
		t.Fatalf("%d of %d counters are there:\n%s", found, want, counters)
	}
	return n
}
