// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * lofamo_lockup: a processor that locks up, and an interrupt that lets the kernel's hard lockup detector look at it. The detector wants a
 * non-maskable interrupt (NMI) every few seconds from a counter of the processor, and QEMU without KVM has no such counter. With this module
 * loaded, each NMI that QEMU injects (inject-nmi) calls the detector as the counter's interrupt would. The detector alone decides whether
 * the processor is locked up, and reports it.
 *
 * Write 1 to /sys/module/lofamo_lockup/parameters/lock, and the processor that does it takes no more interrupts but NMIs.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <asm/nmi.h>

/* This static function of kernel/watchdog_hld.c (watchdog_perf.c since Linux 6.5) is the detector. */
static void (*detector)(struct perf_event *, struct perf_sample_data *, struct pt_regs *);
static struct perf_event counter; /* the detector resets its number of interrupts, and reads nothing of it */

static int look(unsigned int type, struct pt_regs *regs)
{
	detector(&counter, NULL, regs);
	return NMI_HANDLED;
}

static int lock(const char *value, const struct kernel_param *param)
{
	local_irq_disable();
	for (;;)
		cpu_relax();
	return 0;
}

static const struct kernel_param_ops lock_ops = { .set = lock };
module_param_cb(lock, &lock_ops, NULL, 0200);

static int __init lofamo_lockup_init(void)
{
	struct kprobe probe = { .symbol_name = "watchdog_overflow_callback" };
	int err = register_kprobe(&probe); /* only to find its address */

	if (err)
		return err;
	detector = (void *)probe.addr;
	unregister_kprobe(&probe);
	return register_nmi_handler(NMI_LOCAL, look, 0, "lofamo_lockup");
}
module_init(lofamo_lockup_init);

static void __exit lofamo_lockup_exit(void)
{
	unregister_nmi_handler(NMI_LOCAL, "lofamo_lockup");
}
module_exit(lofamo_lockup_exit);

MODULE_DESCRIPTION("Locks a processor up for tests of the hard lockup detector");
MODULE_LICENSE("GPL");
