package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
)

func TestLLDPCommandRefusesInvalidArguments(t *testing.T) {
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{2, "--wait: given 10ms: want 1s to 1h", []string{"--wait", "10ms"}},
		{2, `--output: given "yaml"`, []string{"-o", "yaml"}},
		{2, "--key", []string{"--key", "a b"}},
		{1, "no physical Ethernet interface", []string{"--sysfs", t.TempDir()}},
	} {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append([]string{"lldp"}, c.args...), nil, &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.text) || out.Len() > 0 {
			t.Errorf("%v: %d, %q, %q: want %d, %q", c.args, code, out.String(), errs.String(), c.code, c.text)
		}
	}
}

// Machines with cables to the same two switches get the same label, whatever interface leads to which.
func TestFirstOfTwoSwitches(t *testing.T) {
	a, b := host.Switch{Interface: "eth0", Name: "sw8"}, host.Switch{Interface: "eth1", Name: "sw7"}
	if one, other := firstOf([]host.Switch{a, b}), firstOf([]host.Switch{b, a}); one != "sw7" || other != "sw7" {
		t.Errorf("%q and %q: want sw7 for both", one, other)
	}
}

// TestLLDPCommandPrintsLabel sends frames of a switch over loopback, until the command ends.
func TestLLDPCommandPrintsLabel(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	network := binary.NativeEndian.Uint16([]byte{0x88, 0xcc})
	to := &unix.SockaddrLinklayer{Protocol: network, Ifindex: 1, Halen: 6, Addr: [8]byte{1, 0x80, 0xc2, 0, 0, 0x0e}}
	frame := []byte("\x02\x07\x04\x00\x1b\x21\xaa\xbb\xcc" + "\x04\x03\x07p1" + "\x06\x02\x00\x78" + "\x0a\x03sw7" + "\x00\x00")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			err = unix.Sendto(fd, frame, 0, to)
		}
		ended <- err
	}()
	var out, errs bytes.Buffer
	if code := execute(t.Context(), []string{"lldp", "lo", "--key", "leaf"}, nil, &out, &errs); code != 0 || out.String() != "leaf=sw7\n" {
		t.Errorf("%d, %q, %q: want leaf=sw7", code, out.String(), errs.String())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
