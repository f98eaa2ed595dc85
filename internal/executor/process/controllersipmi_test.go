package process

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/storage"
	"github.com/bougou/go-ipmi/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// simulator is OpenIPMI's simulated management controller: ipmi_sim, with one temperature sensor and an event log.
type simulator struct {
	t       *testing.T
	dir     string
	addr    string
	console io.Writer
}

// cpuTemperature is the sensor's SDR (IPMI 2.0, table 43-1): number 1 of the type temperature, in °C, with upper thresholds.
const cpuTemperature = "" +
	"0x00 0x00 0x51 0x01 0x33 0x20 0x00 0x01 0x03 0x01 0x67 0x68 0x01 0x01 0x80 0x0a 0x80 0x0a 0x38 0x38 0x80 0x01 0x00 " +
	"0x00 0x01 0x00 0x00 0x00 0x00 0x00 0x03 0x60 0xb0 0x00 0xff 0x00 0x64 0x5f 0x5a 0x00 0x00 0x00 0x02 0x02 0x00 0x00 0x00 " +
	"0xc8 0x43 0x50 0x55 0x20 0x54 0x65 0x6d 0x70"

func newSimulator(t *testing.T) *simulator {
	t.Helper()
	program := requirements.Program(t, "apt-get install openipmi", "ipmi_sim")
	at := freeport.Addr(t)
	s := &simulator{t: t, dir: t.TempDir(), addr: at.String()}
	s.write("password", "calvin\n", 0o600)
	s.write("chassis", "#!/bin/sh\n[ \"$2\" = get ] && echo \"power:$(cat "+s.dir+"/power)\"\nexit 0\n", 0o700)
	s.write("lan.conf", fmt.Sprintf(`name "sim"
chassis_control "%s/chassis 0x20"
set_working_mc 0x20
  startlan 1
    addr %s %d
    priv_limit user
    allowed_auths_user none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  user 1 false "" "" user 10 none md2 md5 straight
  user 2 true "root" "calvin" user 10 none md2 md5 straight
`, s.dir, at.Addr(), at.Port()), 0o600)
	const enabled = " 000111000111000"
	s.write("sim.emu", `mc_setbmc 0x20
mc_add 0x20 0 has-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 1 0x01 0x01
sensor_set_threshold 0x20 0 1 settable 111000 100 95 90 0 0 0
sensor_set_value 0x20 0 1 97 0
main_sdr_add 0x20 `+cpuTemperature+`
sensor_set_event_support 0x20 0 1 enable scanning per-state`+strings.Repeat(enabled, 4)+`
mc_enable 0x20
`, 0o600)
	s.power(true)
	cmd := exec.CommandContext(t.Context(), program, "-c", "lan.conf", "-f", "sim.emu", "-s", s.dir)
	cmd.Dir = s.dir
	console, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.console = console
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return s
}

func (s *simulator) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

// power sets the chassis' power.
func (s *simulator) power(on bool) {
	s.t.Helper()
	s.write("power", map[bool]string{true: "1", false: "0"}[on], 0o600)
}

// event adds an entry of a power supply to the event log: its input is lost.
func (s *simulator) event(sensor int) {
	s.t.Helper()
	if _, err := fmt.Fprintf(s.console, "sel_add 0x20 0x02 0x00 0x00 0x00 0x65 0x20 0x00 0x04 0x08 0x%02x 0x6f 0x03 0xff 0xff\n",
		sensor); err != nil {
		s.t.Fatal(err)
	}
}

func (s *simulator) controller() Controller {
	return Controller{Kind: methodIPMI, Address: s.addr, Username: "root", PasswordFile: filepath.Join(s.dir, "password"),
		CipherSuite: 3} // the simulator does not answer other requests
}

// until looks until the answer fits.
func (s *simulator) until(p *controllerPlace, full bool, what string, fits func(controller.Answer) bool) controller.Answer {
	s.t.Helper()
	var a controller.Answer
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if a = lookWithin(s.t, p, full, silence); fits(a) {
			return a
		}
	}
	s.t.Fatalf("%s: %+v", what, a)
	return a
}

// TestIPMIWitnessReadsPowerLogAndSensors: against OpenIPMI's simulator, with the privilege USER.
func TestIPMIWitnessReadsPowerLogAndSensors(t *testing.T) {
	t.Parallel()
	s := newSimulator(t)
	p := place(s.controller())
	a := s.until(p, true, "the simulator answers", func(a controller.Answer) bool { return a.Finding == controller.On })
	if want := []string{"CPU Temp 97 degrees C: above its critical threshold"}; len(a.Log) != 0 || !slices.Equal(a.Sensors, want) {
		t.Errorf("log %q, sensors %q: want none, %q", a.Log, a.Sensors, want)
	}
	s.power(false)
	if a := lookAt(t, p, false); a.Finding != controller.Off || a.Sensors != nil {
		t.Errorf("%+v: want off, and no sensors in a short look", a)
	}
	for i := range 20 {
		s.event(0x50 + i)
	}
	var log []string
	s.until(p, true, "the log grows", func(a controller.Answer) bool {
		log = append(log, a.Log...)
		return len(log) > 0 && strings.Contains(log[len(log)-1], "sensor 0x63")
	})
	for i, line := range log {
		if !strings.Contains(line, "Power Supply, sensor 0x") || slices.Contains(log[:i], line) {
			t.Errorf("line %d: %q: want each event of a power supply once", i, line)
		}
	}
	if a := lookAt(t, p, true); a.Finding != controller.Off || len(a.Log) != 0 {
		t.Errorf("nothing new: %+v", a)
	}
	wrong := s.controller()
	wrong.PasswordFile = filepath.Join(s.dir, "wrong")
	s.write("wrong", "hobbes\n", 0o600)
	if a := lookWithin(t, place(wrong), true, silence); a.Finding.Plain() || a.Detail == "" {
		t.Errorf("with a wrong password: %+v: want an error or silence", a)
	}
}

// TestIPMILogSkipsToNewest: of many new entries a look returns the oldest and the newest, and the next look goes on from there. A log that
// was empty at the first look is read from its begin.
func TestIPMILogSkipsToNewest(t *testing.T) {
	t.Parallel()
	s := newSimulator(t)
	p := place(s.controller())
	s.until(p, true, "the simulator answers", func(a controller.Answer) bool { return a.Finding == controller.On })
	for i := range 20 {
		s.event(0x50 + i)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the console takes them one by one
		newest := lookAt(t, place(s.controller()), true).Log
		if len(newest) == 1 && strings.Contains(newest[0], "sensor 0x63") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log does not grow: %q", newest)
		}
	}
	a := lookAt(t, p, true)
	if n := len(a.Log); n != 2*controller.MaxLines+1 || !strings.Contains(a.Log[0], "sensor 0x50") ||
		!strings.Contains(a.Log[n-1], "sensor 0x63") {
		t.Errorf("%d entries: %q: want 17, from the first on, and the newest", n, a.Log)
	}
	if a := lookAt(t, p, true); len(a.Log) != 0 {
		t.Errorf("nothing new: %q", a.Log)
	}
}

// TestIPMILogLosesNothingWhenControllerIsSilent: a look that gets no answer to its first question returns nothing, and the next one goes on
// from the last entry that was read.
func TestIPMILogLosesNothingWhenControllerIsSilent(t *testing.T) {
	t.Parallel()
	entry := func(id, next uint16) *storage.GetSELEntryResponse {
		data := []byte{0, 0, 2, 0, 0, 0, 0x65, 0x20, 0, 4, 8, 0x50, 0x6f, 3, 0xff, 0xff}
		binary.LittleEndian.PutUint16(data, id)
		return &storage.GetSELEntryResponse{NextRecordID: next, Data: data}
	}
	log := map[uint16]*storage.GetSELEntryResponse{1: entry(1, 2), 2: entry(2, 3), 3: entry(3, 0xffff), 0xffff: entry(3, 0xffff)}
	lost := 0
	get := func(id uint16) (*storage.GetSELEntryResponse, error) {
		if lost > 0 {
			lost--
			return nil, context.DeadlineExceeded
		}
		return log[id], nil
	}
	p := &controllerPlace{last: 1}
	lost = 1
	if got := p.newEntries(get); len(got) != 0 || p.last != 1 {
		t.Errorf("without an answer: %q, last record %d: want none, and 1 as before", got, p.last)
	}
	if got := p.newEntries(get); len(got) != 2 || p.last != 3 {
		t.Errorf("with answers: %q, last record %d: want two entries, and 3", got, p.last)
	}
}

func TestIPv6HostIsBracketed(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"::1": "[::1]", "fe80::1%eth0": "[fe80::1%eth0]", "192.0.2.1": "192.0.2.1", "bmc1": "bmc1"} {
		if got := bracketed(host); got != want {
			t.Errorf("%q: %q: want %q", host, got, want)
		}
	}
}

// wantDisconnected checks that no UDP socket of this process is connected to that loopback address.
func wantDisconnected(t *testing.T, address string) {
	t.Helper()
	if connected(t, address) {
		t.Errorf("a socket connected to %s is open", address)
	}
}

// connected reports whether a UDP socket of this process is connected to that address. It asks each descriptor of the process:
// /proc/self/net/udp would also show a closed socket that a forked child still holds until its exec.
func connected(t *testing.T, address string) bool {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(descriptors, func(d os.DirEntry) bool {
		fd, err := strconv.Atoi(d.Name())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := unix.Getpeername(fd)
		if err != nil { // no connected socket
			return false
		}
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		to, ok := peer.(*unix.SockaddrInet4)
		return err == nil && ok && kind == unix.SOCK_DGRAM &&
			netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port)).String() == address
	})
}

// TestConnectedSeesOpenSockets: connected sees a UDP socket until it is closed.
func TestConnectedSeesOpenSockets(t *testing.T) {
	t.Parallel()
	peer, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Close() }()
	address := peer.LocalAddr().String()
	c, err := net.Dial("udp4", address)
	if err != nil {
		t.Fatal(err)
	}
	if !connected(t, address) {
		t.Errorf("the open socket to %s is not seen", address)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	wantDisconnected(t, address)
}

// TestSilentIPMIIsNotOff: no listener, a listener that never answers, and one that answers with noise end within the timeout, and never as
// a plain answer.
func TestSilentIPMIIsNotOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("calvin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string][]byte{
		"no answer": nil, "an empty packet": {}, "noise": []byte(strings.Repeat("\xff", 1400)),
		"a pong": {6, 0, 0xff, 6, 0, 0, 0x11, 0xbe, 0x40, 0, 0, 0x10}, "a short header": {6, 0, 0xff, 7, 6},
		"a session of its own": append([]byte{6, 0, 0xff, 7, 6, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 36, 0}, make([]byte, 36)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for b := make([]byte, 2048); ; {
					_, from, err := l.ReadFrom(b)
					if err != nil {
						return
					}
					if answer != nil {
						_, _ = l.WriteTo(answer, from)
					}
				}
			}()
			p := place(Controller{Kind: methodIPMI, Address: l.LocalAddr().String(), Username: "root", PasswordFile: filepath.Join(dir, "password")})
			if a := lookWithin(t, p, true, silence); a.Finding.Plain() || a.Finding == 0 || a.Detail == "" {
				t.Errorf("%+v: want silence or an error", a)
			}
			wantDisconnected(t, l.LocalAddr().String())
		})
	}
	t.Run("no listener", func(t *testing.T) {
		t.Parallel()
		p := place(Controller{Kind: methodIPMI, Address: freeport.Addr(t).String(), Username: "root",
			PasswordFile: filepath.Join(dir, "password")})
		if a := lookWithin(t, p, true, silence); a.Finding != controller.Silent {
			t.Errorf("%+v: want silence", a)
		}
	})
}

// TestIPMIServerOfLibraryIsRead: a second implementation, go-ipmi's own server, which has neither log nor sensors.
func TestIPMIServerOfLibraryIsRead(t *testing.T) {
	t.Parallel()
	i := newIPMI(t)
	c := Controller{Kind: methodIPMI, Address: i.addr, Username: "root", PasswordFile: filepath.Join(i.dir, "password")}
	if a := lookAt(t, place(c), true); a.Finding != controller.On || len(a.Log)+len(a.Sensors) > 0 {
		t.Errorf("%+v: want on, without log and sensors", a)
	}
	i.conn.lose()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := place(c).readIPMI(ctx, "calvin", true); err == nil || silentOrWrong(ctx, err) != controller.Silent {
		t.Errorf("packets are lost: %v: want silence", err)
	}
}

// TestMissingIPMISensorsAreNamed: if sensors cannot be read, or not all, a line states the cause.
func TestMissingIPMISensorsAreNamed(t *testing.T) {
	t.Parallel()
	sensor := func(name string, critical bool) *types.Result[types.Sensor] {
		s := &types.Sensor{Name: name, Value: 40, HasAnalogReading: true, ReadingAvailable: true}
		s.SDRRecordType, s.EventReadingType = types.SDRRecordTypeFullSensor, types.EventReadingTypeThreshold
		s.Threshold.ThresholdStatus = types.SensorThresholdStatus_OK
		if critical {
			s.Threshold.ThresholdStatus = types.SensorThresholdStatus_UCR
		}
		return &types.Result[types.Sensor]{Ok: s}
	}
	type stream = []*types.Result[types.Sensor]
	many := make(stream, maxSensors)
	for i := range many {
		many[i] = sensor("fan", false)
	}
	failure := &types.Result[types.Sensor]{Err: errors.New("GetSDR failed: timeout\x1b[2J")}
	for name, tc := range map[string]struct {
		stream stream
		ended  bool     // the look's time is over
		want   []string // parts of the first lines
		lines  int
	}{
		"none":            {nil, false, nil, 0},
		"all":             {stream{sensor("inlet", false), sensor("cpu", true)}, false, []string{"cpu 40", "inlet 40"}, 2},
		"failure":         {stream{sensor("inlet", false), failure, sensor("cpu", true)}, false, []string{"sensors not read", "inlet"}, 2},
		"failure at once": {stream{nil, {}, failure}, false, []string{"sensors not read: GetSDR"}, 1},
		"no list":         {stream{{Err: types.NewResponseError(types.CodeInvalidCommand, "")}}, false, nil, 0},
		"end of a broken list": {stream{sensor("inlet", false), {Err: types.NewResponseError(types.CodeRequestedDataNotPresent, "")}}, false,
			[]string{"sensors not read: ", "inlet"}, 2},
		"too many":       {append(many, sensor("cpu", true)), false, []string{"sensors not read: more sensors", "fan"}, controller.MaxLines},
		"as many as fit": {many, false, []string{"fan"}, controller.MaxLines},
		"out of time":    {stream{sensor("cpu", true)}, true, []string{"cpu", "sensors not read: context canceled"}, 2},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if tc.ended {
			cancel()
		}
		got := sensorLines(ctx, slices.Values(tc.stream))
		cancel()
		if len(got) != tc.lines {
			t.Errorf("%s: %q: want %d lines", name, got, tc.lines)
			continue
		}
		for i, want := range tc.want {
			if !strings.HasPrefix(got[i], want) || strings.Contains(got[i], "\x1b") {
				t.Errorf("%s: line %d is %q: want %q", name, i, got[i], want)
			}
		}
	}
}

// TestIPMISessionEndsBeforeKeepAlive: the library's keep-alive goroutine uses the client without a lock, so a session must end before the
// first keep-alive.
func TestIPMISessionEndsBeforeKeepAlive(t *testing.T) {
	keepAlive := time.Duration(client.DefaultKeepAliveIntervalSec) * time.Second
	for timeout, want := range map[time.Duration]time.Duration{10 * time.Second: 10 * time.Second, time.Minute: maxIPMI} {
		w := &witness{timeout: timeout}
		if got := w.patience(methodIPMI); got != want || got+goodbyeTime >= keepAlive {
			t.Errorf("with a timeout of %s a look takes up to %s: want %s, and less than %s", timeout, got, want, keepAlive-goodbyeTime)
		}
		if got := w.patience(methodRedfish); got != timeout {
			t.Errorf("with a timeout of %s a look over Redfish takes up to %s", timeout, got)
		}
	}
}

// FuzzEventLogEntry: the text of any entry of an event log is bounded, once cleaned.
func FuzzEventLogEntry(f *testing.F) {
	f.Add([]byte{1, 0, 2, 0, 0, 0, 0x65, 0x20, 0, 4, 8, 0x50, 0x6f, 3, 0xff, 0xff})
	f.Add([]byte{1, 0, 0xc0, 0, 0, 0, 0x65, 0x20, 0, 4, 8, 0x50, 0x6f, 3, 0xff, 0xff})
	f.Add([]byte{1, 0, 0xe0})
	f.Fuzz(func(t *testing.T, b []byte) {
		record, err := types.ParseSEL(b)
		if err != nil {
			return
		}
		if s := controller.Clean(selText(record)); s == "" || len(s) > controller.MaxText {
			t.Errorf("%q", s)
		}
	})
}
