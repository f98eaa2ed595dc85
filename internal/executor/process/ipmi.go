package process

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/lofamo/lofamo/internal/executor"
)

// packetTime is the timeout for the answer to one packet.
const packetTime = 2 * time.Second

// refusals are the completion codes of commands that were not begun (IPMI 2.0, table 5-2). All other codes leave that
// open, including timeouts and vendor-specific codes.
var refusals = []types.CompletionCode{
	types.CodeInvalidCommand, types.CodeInvalidCommandForLUN, types.CodeReservationCanceled, types.CodeRequestDataLengthInvalid,
	types.CodeParameterOutOfRange,
	types.CodeRequestDataFieldInvalid, types.CodeIllegalCommand, types.CodeDestinationUnavailable, types.CodeInsufficientPrivilege,
	types.CodeNotSupported,
	types.CodeSubFnDisabled,
}

// refusal reports whether an error is a BMC's answer that the command was not begun.
func refusal(err error) bool { return answeredWith(err, refusals...) }

// answeredWith reports whether an error is an answer of the BMC with one of these completion codes.
func answeredWith(err error, codes ...types.CompletionCode) bool {
	var e *types.ResponseError
	return errors.As(err, &e) && slices.Contains(codes, e.CompletionCode())
}

// cipherSuites returns the cipher suites to try, in this order. Both authenticate and encrypt. Without a list, the library would ask the
// BMC, over an unauthenticated channel, and accept weaker suites too.
func cipherSuites() []types.CipherSuiteID {
	return []types.CipherSuiteID{types.CipherSuiteID17, types.CipherSuiteID3}
}

// openIPMI begins a session, which end closes within goodbye. After an error no socket is left open.
func openIPMI(ctx context.Context, c *client.Client, goodbye time.Duration) (end func(), err error) {
	apart := context.WithoutCancel(ctx)
	if err := c.Connect(ctx); err != nil {
		if d := (*net.DNSError)(nil); !errors.As(err, &d) { // its socket is open: close it without a packet
			ended, cancel := context.WithCancel(apart)
			cancel()
			_ = c.WithRetry(0).Close(ended)
		}
		return nil, err
	}
	return func() {
		within, cancel := context.WithTimeout(apart, goodbye)
		defer cancel()
		_ = c.WithRetry(0).Close(within)
	}, nil
}

// ipmi requests a reset with a single packet that is never repeated, because a BMC need not recognise a duplicate.
func (b BMC) ipmi(ctx context.Context, password string) executor.Result {
	ap, err := netip.ParseAddrPort(b.Address)
	if err != nil {
		return executor.Unchanged("address: %s", err)
	}
	c, err := client.NewClient(bracketed(ap.Addr().String()), int(ap.Port()), b.Username, password)
	if err != nil {
		return executor.Unchanged("%s: %s", b.Address, plain(err))
	}
	checked(c).WithTimeout(packetTime).WithRetry(2).WithMaxPrivilegeLevel(types.PrivilegeLevelOperator).WithCipherSuiteID(cipherSuites()...)
	end, err := openIPMI(ctx, c, packetTime)
	if err != nil {
		return executor.Unchanged("%s: %s", b.Address, plain(err))
	}
	defer end()
	before, err := c.GetChassisStatus(ctx)
	if err != nil {
		return executor.Unchanged("%s: %s", b.Address, plain(err))
	}
	if err := ctx.Err(); err != nil {
		return executor.Unchanged("%s: before the reset: %s", b.Address, err)
	}
	if err := executor.Fenced(ctx); err != nil {
		return executor.Held(err)
	}
	control := chassis.ChassisControlHardReset
	if b.Reset == "cycle" {
		control = chassis.ChassisControlPowerCycle
	}
	if _, err := c.WithRetry(0).ChassisControl(ctx, control); err != nil {
		if refusal(err) {
			return executor.Unchanged("%s: %s", b.Address, plain(err))
		}
		return executor.NotKnown("%s: %s was sent once, without a plain answer: %s", b.Address, b.Reset, plain(err))
	}
	power := map[bool]string{true: "On", false: "Off"}
	now := "not said"
	if s, err := c.GetChassisStatus(ctx); err == nil {
		now = power[s.PowerIsOn]
	}
	return executor.Done("the BMC says that %s is done; power was %s, is %s; %s", b.Reset, power[before.PowerIsOn], now, proves)
}
