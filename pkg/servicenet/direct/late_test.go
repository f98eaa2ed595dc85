package direct

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestLateInterfaceWorksAfterRebind: a socket whose interface does not exist yet refuses to send, says why, and works
// once it was rebound; one whose address does not exist does the same.
func TestLateInterfaceWorksAfterRebind(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	for _, want := range []struct {
		addr, ifc string
		err       error
	}{{"10.77.0.1:4000", "svc0", unix.ENODEV}, {"10.77.0.1:4001", "", unix.EADDRNOTAVAIL}} {
		s, err := Listen(want.addr, Options{Interface: want.ifc, Late: true})
		if err != nil {
			t.Fatal(err)
		}
		at := run(t, s)
		if err := s.Absent(); !errors.Is(err, want.err) {
			t.Errorf("absent: %v: want %v", err, want.err)
		}
		if err := s.Send(s.LocalAddr(), []byte("report")); !PathError(err) {
			t.Errorf("send meanwhile: %v: want what speaks against the path", err)
		}
		if err := s.Rebind(); !errors.Is(err, want.err) {
			t.Errorf("rebind too early: %v: want %v", err, want.err)
		}
		if st := s.Stats(); st.Dropped != 0 || st.Rebinds != 0 {
			t.Errorf("%+v", st)
		}
		veth(t)
		if err := s.Rebind(); err != nil {
			t.Fatal(err)
		}
		if err := s.Absent(); err != nil {
			t.Errorf("absent when it is there: %v", err)
		}
		b, atB := start2(t, "10.77.0.1:0")
		exchange(t, s, b, at, atB)
		netnstest.IP(t, "link del svc0")
	}
}

// TestSendDoesNotWaitForRebind: Rebind may wait for the kernel while a card is reset, and the half goes on sending.
func TestSendDoesNotWaitForRebind(t *testing.T) {
	s, err := Listen("192.0.2.1:4000", Options{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock() // as Rebind does, while the kernel opens the socket
	defer s.mu.Unlock()
	sent := make(chan error, 1)
	go func() { sent <- s.Send(s.LocalAddr(), []byte("report")) }()
	select {
	case err := <-sent:
		if !PathError(err) {
			t.Errorf("%v: want an error that speaks against the path", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Send waits for Rebind")
	}
}

func TestListenRefusesMissingAddress(t *testing.T) {
	const nobodys = "192.0.2.1:4000" // RFC 5737: for documentation
	if _, err := Listen(nobodys, Options{}); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("not late: %v", err)
	}
	if _, err := Listen("192.0.2.1:0", Options{Late: true}); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("port 0: %v", err)
	}
	other, _ := start(t)
	if _, err := Listen(other.LocalAddr().String(), Options{Late: true}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("taken port: %v", err)
	}
	s, err := Listen(nobodys, Options{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context(), nil) }()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("closed before it was open: %v", err)
	}
	if err := s.Absent(); err != nil {
		t.Errorf("absent when closed: %v", err)
	}
	if err := s.Send(other.LocalAddr(), []byte("report")); !errors.Is(err, servicenet.ErrClosed) {
		t.Errorf("send when closed: %v", err)
	}
	if err := s.Rebind(); !errors.Is(err, servicenet.ErrClosed) {
		t.Errorf("rebind when closed: %v", err)
	}
}
