package host

import (
	"bytes"
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/netnstest"
)

// tlv is one field of a frame.
func tlv(kind byte, value string) string {
	return string([]byte{kind<<1 | byte(len(value)>>8), byte(len(value))}) + value
}

// Parts of a frame. A Chassis is a MAC address, a port an interface name.
var (
	chassis   = tlv(1, "\x04\x00\x1b\x21\xaa\xbb\xcc")
	port      = tlv(2, "\x05Eth1/7")
	lives     = tlv(3, "\x00\x78")
	goodbye   = tlv(3, "\x00\x00")
	name      = tlv(5, "sw7.hall3")
	bridge    = tlv(7, "\x00\x14\x00\x04")
	station   = tlv(7, "\x00\x84\x00\x80")
	end       = tlv(0, "")
	fromSw7   = Switch{Chassis: "00:1b:21:aa:bb:cc", Port: "Eth1/7", Name: "sw7.hall3"}
	noName    = Switch{Chassis: "00:1b:21:aa:bb:cc", Port: "Eth1/7"}
	frameSw7  = chassis + port + lives + name + bridge + end
	frameHost = chassis + port + lives + name + station + end
)

func TestLLDPFramesAreRead(t *testing.T) {
	for what, c := range map[string]struct {
		frame string
		want  Switch
		err   string
	}{
		"a switch":                     {frameSw7, fromSw7, ""},
		"padded by Ethernet":           {frameSw7 + strings.Repeat("\x00", 20), fromSw7, ""},
		"without name or capabilities": {chassis + port + lives + end, noName, ""},
		"addresses as identities": {tlv(1, "\x05\x01\x0a\x00\x00\x01") + tlv(2, "\x03\x00\x1b\x21\x00\x00\x01") + lives + end,
			Switch{Chassis: "10.0.0.1", Port: "00:1b:21:00:00:01"}, ""},
		"unprintable name": {chassis + port + lives + tlv(5, "a\nb\x00") + end,
			Switch{Chassis: noName.Chassis, Port: "Eth1/7", Name: "a?b"}, ""},
		"unknown fields":       {chassis + port + lives + tlv(127, "\x00\x80\xc2\x01\x00\x01") + end, noName, ""},
		"a station":            {frameHost, Switch{}, errNoSwitch.Error()},
		"a goodbye":            {chassis + port + goodbye + bridge + end, Switch{}, errNoSwitch.Error()},
		"no end":               {chassis + port + lives, Switch{}, "without an end"},
		"a cut field":          {frameSw7[:len(frameSw7)-4], Switch{}, "field 4 of type 7 has 2 bytes, want 4"},
		"wrong order":          {port + chassis + lives + end, Switch{}, "field 0 has type 2, want 1"},
		"empty identity":       {tlv(1, "\x04") + port + lives + end, Switch{}, "type 1 has 1 bytes, want 2 to 256"},
		"short capabilities":   {chassis + port + lives + tlv(7, "\x00") + end, Switch{}, "capabilities have 1 bytes"},
		"short time to live":   {chassis + port + tlv(3, "\x01") + end, Switch{}, "time to live has 1 bytes"},
		"nothing":              {"", Switch{}, "without an end"},
		"larger than Ethernet": {strings.Repeat("\xff", 1501), Switch{}, "1501 bytes"},
	} {
		got, err := parseLLDP([]byte(c.frame))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got error %v, want %q", what, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
}

func TestSwitchNamesBecomeLabels(t *testing.T) {
	for _, c := range []struct {
		of   Switch
		want string
	}{
		{fromSw7, "sw7.hall3"},
		{Switch{Chassis: "00:1b:21:aa:bb:cc"}, "00-1b-21-aa-bb-cc-c1d9eea5"},
		{Switch{Name: "hall 3"}, "hall-3-be6f09ff"},
		{Switch{Name: "hall/3"}, "hall-3-3e8a16fc"}, // differs from the one above
		{Switch{Name: "?"}, "3a0cb08e"},
	} {
		if got := c.of.Label(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.of, got, c.want)
		}
	}
}

var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// Any frame gives an error, or a switch whose name is a good label.
func FuzzLLDP(f *testing.F) {
	f.Add([]byte(frameSw7))
	f.Add([]byte(frameHost))
	f.Add([]byte(chassis + port + lives + tlv(5, strings.Repeat("é.", 60)) + end))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseLLDP(b)
		if err != nil {
			return
		}
		if l := s.Label(); !labelValue.MatchString(l) {
			t.Errorf("%+v: label %q", s, l)
		}
		if len(s.Name) > maxLLDPText || len(s.Chassis) > maxLLDPText || len(s.Port) > maxLLDPText {
			t.Errorf("%+v: longer than %d bytes", s, maxLLDPText)
		}
	})
}

// TestSwitchesAreHeard sends frames over real cables: a good one behind damaged and strange ones, and none over one cable.
func TestSwitchesAreHeard(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	for _, cable := range []string{"0", "1", "2"} {
		netnstest.IP(t, "link add eth"+cable+" type veth peer name sw"+cable)
		netnstest.IP(t, "link set eth"+cable+" up")
		netnstest.IP(t, "link set sw"+cable+" up")
	}
	ctx, cancel := context.WithTimeout(t.Context(), listPatience)
	defer cancel()
	// The sender repeats all frames until the end, as a switch does.
	var sender errgroup.Group
	sender.Go(func() error {
		for ctx.Err() == nil {
			if err := errors.Join(
				sendLLDP("sw0", frameSw7[:20]), sendLLDP("sw0", frameHost), sendLLDP("sw0", frameSw7),
				sendLLDP("sw1", chassis+port+lives+end), sendLLDP("eth1", frameSw7), sendLLDP("sw2", frameHost)); err != nil {
				cancel()
				return err
			}
		}
		return nil
	})
	got, err := Switches(ctx, []string{"eth1", "eth0"})
	if err != nil {
		t.Error(err)
	}
	a, b := fromSw7, noName
	a.Interface, b.Interface = "eth0", "eth1"
	if d := cmp.Diff([]Switch{a, b}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	short, end := context.WithCancel(ctx)
	end()
	if got, err := Switches(short, []string{"eth2"}); !errors.Is(err, ErrNoFrame) {
		t.Errorf("a cable without a switch: got %v, %v", got, err)
	}
	if _, err := Switches(ctx, []string{"eth9"}); err == nil || !strings.Contains(err.Error(), `"eth9"`) {
		t.Errorf("no such interface: %v", err)
	}
	cancel()
	if err := sender.Wait(); err != nil {
		t.Error(err)
	}
}

// sendLLDP sends one frame over an interface.
func sendLLDP(over, frame string) error {
	i, err := net.InterfaceByName(over)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	to := &unix.SockaddrLinklayer{Protocol: bigEndian(lldpType), Ifindex: i.Index, Halen: 6}
	copy(to.Addr[:], lldpGroups[0][:])
	return unix.Sendto(fd, bytes.Clone([]byte(frame)), 0, to)
}
