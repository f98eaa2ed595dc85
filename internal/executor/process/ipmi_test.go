package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/hal"
	"github.com/bougou/go-ipmi/pkg/hal/mock"
	ipmiserver "github.com/bougou/go-ipmi/pkg/server"
	"github.com/bougou/go-ipmi/pkg/transport/udp"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/lofamo/lofamo/pkg/response"
)

// ipmiBMC is an IPMI 2.0 BMC over RMCP+ on loopback that counts the resets of its chassis.
type ipmiBMC struct {
	board
	conn *lossy
	dir  string
	addr string
}

// board counts the actions on it.
type board struct {
	*mock.Chassis
	mu     sync.Mutex
	cycles int
	resets int
	err    error  // its answer
	before func() // called before the action
}

func (c *board) done(n *int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.before != nil {
		c.before()
	}
	if c.err != nil {
		return c.err
	}
	*n++
	return nil
}

func (c *board) PowerCycle(context.Context) error { return c.done(&c.cycles) }
func (c *board) ColdReset(context.Context) error  { return c.done(&c.resets) }

// answer sets the board's answer and a function to call before each action.
func (c *board) answer(err error, before func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.before = err, before
}

func (c *board) counts() (cycles, resets int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cycles, c.resets
}

// hardware is a mock with our chassis.
type hardware struct {
	*mock.HAL
	chassis *board
}

func (h hardware) Chassis() hal.ChassisHAL { return h.chassis }

// lossy drops the BMC's packets after lose.
type lossy struct {
	*udp.Conn
	mu       sync.Mutex
	lost     bool
	proposed [][3]byte             // algorithms of each Open Session Request: authentication, integrity, encryption
	instead  *[3]byte              // nil, or the algorithms that the BMC reads instead
	kind     byte                  // byte 5 of the packets that forge replaces: payload type, encrypted, authenticated
	forge    func([]byte) [][]byte // returns packets to send instead; may be nil
}

// ReadFrom records the algorithms of Open Session Requests (IPMI 2.0, tables 13-8 and 13-9), and replaces them.
func (l *lossy) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := l.Conn.ReadFrom(b)
	const rmcpPlus, openSession = 0x06, 0x10
	if n >= 48 && b[4] == rmcpPlus && b[5] == openSession {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.proposed = append(l.proposed, [3]byte{b[28], b[36], b[44]})
		if l.instead != nil {
			b[28], b[36], b[44] = l.instead[0], l.instead[1], l.instead[2]
		}
	}
	return n, from, err
}

func (l *lossy) WriteTo(b []byte, to net.Addr) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return len(b), nil
	}
	const rmcpPlus = 0x06
	if l.forge != nil && b[4] == rmcpPlus && b[5] == l.kind {
		for _, packet := range l.forge(slices.Clone(b)) {
			if _, err := l.Conn.WriteTo(packet, to); err != nil {
				return 0, err
			}
		}
		return len(b), nil
	}
	return l.Conn.WriteTo(b, to)
}

// propose replaces the algorithms of Open Session Requests.
func (l *lossy) propose(instead [3]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.instead = &instead
}

// replace replaces the BMC's packets of that kind.
func (l *lossy) replace(kind byte, forge func([]byte) [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kind, l.forge = kind, forge
}

func (l *lossy) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

func newIPMI(t *testing.T, options ...bmc.Option) *ipmiBMC {
	t.Helper()
	conn, err := udp.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i := &ipmiBMC{board: board{Chassis: &mock.Chassis{On: true}}, conn: &lossy{Conn: conn}, dir: t.TempDir(), addr: conn.LocalAddr().String()}
	b := bmc.New(bmc.DeviceInfo{DeviceID: 32, FirmwareMajor: 1, IPMIVersion: 0x20}, [16]byte{1}, hardware{mock.New(), &i.board}, options...)
	user, err := b.Users.Add(2, "root")
	if err != nil {
		t.Fatal(err)
	}
	user.SetPassword([]byte("calvin"))
	user.Enabled = true
	user.ChannelAccess[1] = bmc.UserChannelAccess{MaxPrivilege: bmc.PrivilegeLevelOperator, Enabled: true}
	s := ipmiserver.NewServer(b, i.conn)
	ended := make(chan struct{})
	go func() {
		_ = s.Serve(context.Background())
		close(ended)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		_ = conn.Close()
		<-ended
	})
	if err := os.WriteFile(filepath.Join(i.dir, "password"), []byte("calvin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *ipmiBMC) bmc() BMC {
	return BMC{Method: methodIPMI, Address: i.addr, Username: "root", PasswordFile: filepath.Join(i.dir, "password")}
}

func TestIPMIResetsAndCycles(t *testing.T) {
	t.Parallel()
	i := newIPMI(t)
	wantPower(t, onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI)), response.Succeeded, "reset is done; power was On, is On")
	b := i.bmc()
	b.Reset = "cycle"
	wantPower(t, onePower(t, b).Do(t.Context(), powerJob(methodIPMI)), response.Succeeded, "cycle is done")
	if cycles, resets := i.counts(); cycles != 1 || resets != 1 {
		t.Errorf("%d cycles, %d resets: want one each", cycles, resets)
	}
	i.answer(errors.New("broken"), nil)
	wantPower(t, onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI)), response.NotKnown, "cc: 0xff")
	i.answer(nil, nil)
	b = i.bmc()
	b.Username = "admin"
	wantPower(t, onePower(t, b).Do(t.Context(), powerJob(methodIPMI)), response.Unchanged, "")
	if cycles, resets := i.counts(); cycles != 1 || resets != 1 {
		t.Errorf("%d cycles, %d resets: want one each", cycles, resets)
	}
}

// TestIPMIResetRefusesWeakCipherSuites: a BMC that offers only cipher suite 16, which does not encrypt,
// resets nothing. The client proposes the suites 17 and 3 only, and the result names them.
func TestIPMIResetRefusesWeakCipherSuites(t *testing.T) {
	t.Parallel()
	i := newIPMI(t, bmc.WithCipherSuites([]types.CipherSuiteID{types.CipherSuiteID16}))
	r := onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI))
	wantPower(t, r, response.Unchanged, "cipher suite ids ([17 3])")
	if cycles, resets := i.counts(); cycles+resets != 0 {
		t.Errorf("%d cycles, %d resets: want none", cycles, resets)
	}
	i.conn.mu.Lock()
	defer i.conn.mu.Unlock()
	// The client sends a request again if the answer is late.
	if want := [][3]byte{{3, 4, 1}, {1, 1, 1}}; !slices.Equal(slices.Compact(slices.Clone(i.conn.proposed)), want) {
		t.Errorf("proposed algorithms %v: want %v", i.conn.proposed, want)
	}
	wantDisconnected(t, i.addr)
}

// TestIPMIRefusesOtherAlgorithms: somebody between the client and the BMC makes them agree on cipher suite 15, which neither encrypts
// nor has integrity. The client notices it in the answer, and resets nothing.
func TestIPMIRefusesOtherAlgorithms(t *testing.T) {
	t.Parallel()
	i := newIPMI(t, bmc.WithCipherSuites([]types.CipherSuiteID{types.CipherSuiteID15}))
	i.conn.propose([3]byte{byte(types.AuthAlg_HMAC_SHA256), byte(types.IntegrityAlg_None), byte(types.CryptAlg_None)})
	wantPower(t, onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI)), response.Unchanged, "answers with other algorithms")
	if cycles, resets := i.counts(); cycles+resets != 0 {
		t.Errorf("%d cycles, %d resets: want none", cycles, resets)
	}
	wantDisconnected(t, i.addr)
}

// TestIPMIIgnoresLateAnswer: an answer to the request for suite 17 that arrives after the request for suite 3 does not end the attempt
// with suite 3.
func TestIPMIIgnoresLateAnswer(t *testing.T) {
	t.Parallel()
	i := newIPMI(t, bmc.WithCipherSuites([]types.CipherSuiteID{types.CipherSuiteID3}))
	i.conn.replace(openSessionResponse, func(b []byte) [][]byte {
		const tag, status, auth, integrity, crypt = 16, 17, 32, 40, 48
		if b[status] != 0 {
			return [][]byte{b} // it refuses suite 17
		}
		late := slices.Clone(b)
		late[tag] = 0
		late[auth], late[integrity], late[crypt] = byte(types.AuthAlg_HMAC_SHA256), byte(types.IntegrityAlg_HMAC_SHA256_128), b[crypt]
		return [][]byte{late, b}
	})
	wantPower(t, onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI)), response.Succeeded, "reset is done")
}

// TestIPMIIgnoresLateRefusal: the BMC refuses suite 17 twice, because the client has sent that request twice. The second refusal arrives
// after the request for suite 3, and does not end the attempt with suite 3.
func TestIPMIIgnoresLateRefusal(t *testing.T) {
	t.Parallel()
	i := newIPMI(t, bmc.WithCipherSuites([]types.CipherSuiteID{types.CipherSuiteID3}))
	var refusal []byte
	i.conn.replace(openSessionResponse, func(b []byte) [][]byte {
		const status = 17
		if b[status] != 0 {
			refusal = slices.Clone(b)
			return [][]byte{b}
		}
		return [][]byte{slices.Clone(refusal), b}
	})
	wantPower(t, onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI)), response.Succeeded, "reset is done")
}

// Kinds of the BMC's packets (IPMI 2.0, table 13-16).
const (
	openSessionResponse = byte(types.PayloadTypeRmcpOpenSessionResponse)
	rakp2               = byte(types.PayloadTypeRAKPMessage2)
	rakp4               = byte(types.PayloadTypeRAKPMessage4)
	inSession           = 0x80 | 0x40 // encrypted and authenticated
)

// relabelled returns a packet with another payload type.
func relabelled(kind byte) func([]byte) []byte {
	return func(b []byte) []byte { b[5] = kind; return b }
}

// asASF returns an ASF packet with the payload of an RMCP+ packet.
func asASF(b []byte) []byte {
	const rmcp, sessionHeader, asf = 4, 12, 6
	payload := b[rmcp+sessionHeader:]
	return append([]byte{6, 0, 0xff, asf, 0, 0, 0x11, 0xbe, 0, 0, 0, byte(len(payload))}, payload...)
}

// asIPMI15 returns an IPMI 1.5 packet with the payload of an RMCP+ packet.
func asIPMI15(b []byte) []byte {
	const rmcp, sessionHeader = 4, 12
	message := slices.Concat([]byte{0x81, 0x1c, 0x63, 0x20, 0, 0, 0}, b[rmcp+sessionHeader:], []byte{0})
	return append([]byte{6, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(message))}, message...)
}

// TestIPMIAcceptsNoForgedAnswer: the client ignores packets that somebody between it and the BMC has changed: in a session, and in the
// exchange that begins one.
func TestIPMIAcceptsNoForgedAnswer(t *testing.T) {
	t.Parallel()
	const privilege = "SetSessionPrivilegeLevel" // the first request in a session
	for name, test := range map[string]struct {
		kind   byte
		forge  func([]byte) []byte
		failed string // the request without an answer
	}{
		// Inverts the completion code's block of the plain text by way of the initialisation vector.
		"changed":      {inSession, func(b []byte) []byte { b[16+6] ^= 0xff; return b }, privilege},
		"changed code": {inSession, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, privilege},
		"cut":          {inSession, func(b []byte) []byte { return b[:len(b)-1] }, privilege},
		"plain": {inSession, func(b []byte) []byte {
			// A positive answer to SetSessionPrivilegeLevel, without encryption and code.
			plain := []byte{0x81, 0x1c, 0x63, 0x20, 0x08, 0x3b, 0x00, 0x03, 0x9a}
			b[5], b[14], b[15] = 0, byte(len(plain)), 0
			return append(b[:16], plain...)
		}, privilege},
		"relabelled Open Session Response": {openSessionResponse, relabelled(rakp4), "Open Session failed with cipher suite id (17)"},
		"relabelled RAKP 2":                {rakp2, relabelled(rakp4), "rakp1 failed with cipher suite id (17)"},
		"RAKP 2 as ASF":                    {rakp2, asASF, "rakp1 failed with cipher suite id (17)"},
		"RAKP 2 as IPMI 1.5":               {rakp2, asIPMI15, "rakp1 failed with cipher suite id (17)"},
		"relabelled RAKP 4":                {rakp4, relabelled(rakp2), "rakp3 failed with cipher suite id (17)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newIPMI(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var first sync.Once
			i.conn.replace(test.kind, func(b []byte) [][]byte {
				first.Do(func() { time.AfterFunc(time.Second, cancel) }) // from here: a slow machine may come late
				return [][]byte{test.forge(b)}
			})
			r := onePower(t, i.bmc()).Do(ctx, powerJob(methodIPMI))
			wantPower(t, r, response.Unchanged, test.failed)
			if strings.Contains(r.Detail, "cc: ") || !strings.Contains(r.Detail, "canceled") {
				t.Errorf("the client read a forged answer: %s", r.Detail)
			}
			if cycles, resets := i.counts(); cycles+resets != 0 {
				t.Errorf("%d cycles, %d resets: want none", cycles, resets)
			}
		})
	}
}

// TestOnlyPlainIPMIRefusalIsUnchanged: only a code that explicitly says the reset was not begun gives the outcome Unchanged.
func TestOnlyPlainIPMIRefusalIsUnchanged(t *testing.T) {
	t.Parallel()
	plainly := []types.CompletionCode{0xc1, 0xc2, 0xc5, 0xc7, 0xc9, 0xcc, 0xcd, 0xd3, 0xd4, 0xd5, 0xd6}
	for code := range 256 {
		cc := types.CompletionCode(code)
		if got, want := refusal(fmt.Errorf("reset: %w", types.NewResponseError(cc, "x"))), slices.Contains(plainly, cc); got != want {
			t.Errorf("%#02x: %t, want %t", code, got, want)
		}
	}
	if refusal(errors.New("timeout")) {
		t.Error("what is no answer is taken for a refusal")
	}
	i := newIPMI(t)
	x := onePower(t, i.bmc())
	for cc, o := range map[types.CompletionCode]response.Outcome{
		0xd4: response.Unchanged, 0xd5: response.Unchanged, 0xc0: response.NotKnown, 0xc3: response.NotKnown, 0xce: response.NotKnown,
		0x80: response.NotKnown, 0x01: response.NotKnown,
	} {
		i.answer(cc, nil)
		wantPower(t, x.Do(t.Context(), powerJob(methodIPMI)), o, fmt.Sprintf("cc: %#02x", uint8(cc)))
	}
}

// TestIPMIAnswerLost: a reset without an answer is requested once and has an unknown outcome.
func TestIPMIAnswerLost(t *testing.T) {
	t.Parallel()
	i := newIPMI(t)
	i.answer(nil, i.conn.lose)
	began := time.Now()
	wantPower(t, onePower(t, i.bmc()).Do(t.Context(), powerJob(methodIPMI)), response.NotKnown, "sent once, without a plain answer")
	if _, resets := i.counts(); resets != 1 {
		t.Errorf("%d resets after %s", resets, time.Since(began))
	}
}

// TestSilentIPMIHasResetNothing: a BMC that does not answer at all has reset nothing.
func TestSilentIPMIHasResetNothing(t *testing.T) {
	t.Parallel()
	i := newIPMI(t)
	i.conn.lose()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantPower(t, onePower(t, i.bmc()).Do(ctx, powerJob(methodIPMI)), response.Unchanged, i.addr)
	if _, resets := i.counts(); resets != 0 {
		t.Errorf("%d resets", resets)
	}
	wantDisconnected(t, i.addr)
}
