package deaths

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// controlBound bounds each exchange with QEMU.
const controlBound = 30 * time.Second

// dialUnix connects to a socket that QEMU is about to make.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, controlBound)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// qmp is QEMU's control connection.
type qmp struct {
	conn    net.Conn
	answers chan qmpLine
	events  *feed[string] // their names
}

type qmpLine struct {
	Return json.RawMessage            `json:"return"`
	Error  *struct{ Desc string }     `json:"error"`
	Event  string                     `json:"event"`
	QMP    map[string]json.RawMessage `json:"QMP"`
}

// dialQMP connects. Events go to the feed, in which they outlive the connection.
func dialQMP(ctx context.Context, path string, events *feed[string]) (*qmp, error) {
	conn, err := dialUnix(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("control of a machine: %w", err)
	}
	q := &qmp{conn: conn, answers: make(chan qmpLine, 16), events: events}
	go q.read()
	return q, q.do("qmp_capabilities")
}

func (q *qmp) read() {
	defer close(q.answers)
	lines := bufio.NewScanner(q.conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l qmpLine
		switch err := json.Unmarshal(lines.Bytes(), &l); {
		case err != nil || l.QMP != nil:
		case l.Event != "":
			q.events.add(l.Event)
		default:
			q.answers <- l
		}
	}
}

// do gives one command, with at most one set of arguments, and waits for its answer.
func (q *qmp) do(command string, arguments ...map[string]any) error {
	request := map[string]any{"execute": command}
	for _, a := range arguments {
		request["arguments"] = a
	}
	b, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := q.conn.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("control %s: %w", command, err)
	}
	select {
	case l, ok := <-q.answers:
		if !ok {
			return fmt.Errorf("control %s: the connection ended", command)
		}
		if l.Error != nil {
			return fmt.Errorf("control %s: %s", command, l.Error.Desc)
		}
		return nil
	case <-time.After(controlBound):
		return fmt.Errorf("control %s: no answer within %s", command, controlBound)
	}
}

// processor holds some registers of the machine's processor.
type processor struct {
	rip   uint64
	flags uint32
	cs    uint32
	all   []byte // all registers, as QEMU sends them
}

// Places of registers in the list.
const (
	ripAt   = 128
	flagsAt = 136
	csAt    = 140
)

// interruptFlag is the flag with which the processor takes interrupts.
const interruptFlag = 1 << 9

// errUnfit: the processor runs a program and not the kernel, or the kernel takes no interrupts at that moment.
var errUnfit = errors.New("the processor is not where the kernel can be stopped")

// fit reports whether the processor runs the kernel, with interrupts on. Elsewhere a loop would end otherwise than meant.
func (p processor) fit() bool { return p.cs&3 == 0 && p.flags&interruptFlag != 0 }

// spin makes the processor loop for ever at its present instruction of the kernel. Without interrupts not even the
// kernel's own timers run.
func spin(interrupts bool) func(*debugger, processor) error {
	return func(d *debugger, p processor) error {
		if !p.fit() {
			return errUnfit
		}
		if !interrupts {
			binary.LittleEndian.PutUint32(p.all[flagsAt:], p.flags&^interruptFlag)
			if err := d.set(p); err != nil {
				return err
			}
		}
		const jumpToSelf = "ebfe"
		return d.expect(fmt.Sprintf("M%x,2:%s", p.rip, jumpToSelf), "OK")
	}
}

// jumpToNull makes the kernel continue at address 0.
func jumpToNull(d *debugger, p processor) error {
	if !p.fit() {
		return errUnfit
	}
	binary.LittleEndian.PutUint64(p.all[ripAt:], 0)
	return d.set(p)
}

// debugger speaks GDB's remote protocol with QEMU, which halts the machine while it is connected.
type debugger struct {
	conn net.Conn
	in   *bufio.Reader
}

// debug halts the machine, lets act change it, and lets it run on. It tries again while the processor is not fit.
func debug(ctx context.Context, path string, act func(*debugger, processor) error) error {
	for try := 0; ; try++ {
		err := debugOnce(ctx, path, act)
		if !errors.Is(err, errUnfit) || try >= 100 {
			return err
		}
	}
}

func debugOnce(ctx context.Context, path string, act func(*debugger, processor) error) (err error) {
	conn, err := dialUnix(ctx, path)
	if err != nil {
		return fmt.Errorf("debugger: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(controlBound)); err != nil {
		return err
	}
	d := &debugger{conn, bufio.NewReader(conn)}
	if _, err := d.ask("?"); err != nil {
		return err
	}
	p, err := d.processor()
	if err == nil {
		err = act(d, p)
	}
	return errors.Join(err, d.expect("D", "OK"))
}

// processor reads the registers: 16 general ones of 8 bytes, then these.
func (d *debugger) processor() (p processor, err error) {
	answer, err := d.ask("g")
	if err != nil {
		return p, err
	}
	b, err := hex.DecodeString(answer)
	if err != nil || len(b) < csAt+4 {
		return p, fmt.Errorf("debugger: registers %.40q: want %d bytes and more", answer, csAt+4)
	}
	u32 := binary.LittleEndian.Uint32
	return processor{binary.LittleEndian.Uint64(b[ripAt:]), u32(b[flagsAt:]), u32(b[csAt:]), b}, nil
}

// set writes all registers.
func (d *debugger) set(p processor) error { return d.expect("G"+hex.EncodeToString(p.all), "OK") }

func (d *debugger) expect(packet, want string) error {
	got, err := d.ask(packet)
	if err == nil && got != want {
		err = fmt.Errorf("debugger: %.40s answers %.40q: want %s", packet, got, want)
	}
	return err
}

// ask sends a packet and returns its answer. QEMU may report before it that the machine has stopped.
func (d *debugger) ask(packet string) (string, error) {
	if _, err := fmt.Fprintf(d.conn, "$%s#%02x", packet, sum(packet)); err != nil {
		return "", fmt.Errorf("debugger: %w", err)
	}
	for {
		answer, err := d.packet()
		if err != nil || packet == "?" || !strings.HasPrefix(answer, "T") {
			return answer, err
		}
	}
}

// packet reads one packet and acknowledges it.
func (d *debugger) packet() (string, error) {
	if _, err := d.in.ReadString('$'); err != nil { // behind acknowledgements
		return "", fmt.Errorf("debugger: %w", err)
	}
	text, err := d.in.ReadString('#')
	if err != nil {
		return "", fmt.Errorf("debugger: %w", err)
	}
	text = strings.TrimSuffix(text, "#")
	check := make([]byte, 2)
	if _, err := io.ReadFull(d.in, check); err != nil || string(check) != fmt.Sprintf("%02x", sum(text)) {
		return "", fmt.Errorf("debugger: answer %.40q has the checksum %s: %w", text, check, err)
	}
	_, err = d.conn.Write([]byte("+"))
	return text, err
}

// sum is the protocol's checksum.
func sum(packet string) (s byte) {
	for i := range len(packet) {
		s += packet[i]
	}
	return s
}
