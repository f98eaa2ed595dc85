// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * lofamo_edac: a memory controller with one DIMM, into which the tests of hack/vm/sensors inject errors. It registers itself with
 * the kernel's EDAC core as the drivers of real controllers do, and hands its errors to the core in the same way. The core alone counts
 * them, logs them, and shows the counters below /sys/devices/system/edac/mc.
 *
 * Write a number from 1 to 1000 to one of these files, and the controller reports that many errors at once:
 *
 *	/sys/devices/platform/lofamo_edac/corrected
 *	/sys/devices/platform/lofamo_edac/uncorrected
 */
#include <linux/edac.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/version.h>

/* These are functions of the EDAC core. drivers/edac/edac_mc.h declares them, and Debian's header packages leave it out. */
struct mem_ctl_info *edac_mc_alloc(unsigned int mc_num, unsigned int n_layers, struct edac_mc_layer *layers, unsigned int sz_pvt);
int edac_mc_add_mc_with_groups(struct mem_ctl_info *mci, const struct attribute_group **groups);
struct mem_ctl_info *edac_mc_del_mc(struct device *dev);
void edac_mc_free(struct mem_ctl_info *mci);
void edac_mc_handle_error(const enum hw_event_mc_err_type type, struct mem_ctl_info *mci, const u16 error_count,
			  const unsigned long page_frame_number, const unsigned long offset_in_page, const unsigned long syndrome,
			  const int top_layer, const int mid_layer, const int low_layer, const char *msg, const char *other_detail);

#define MODULE_PAGES 4096 /* 16 MiB */
#define MAX_ERRORS 1000

static struct platform_device *controller;

static ssize_t report(struct device *dev, const char *buf, size_t length, enum hw_event_mc_err_type type)
{
	u16 count;
	int err = kstrtou16(buf, 0, &count);

	if (err)
		return err;
	if (count < 1 || count > MAX_ERRORS)
		return -EINVAL;
	/* Page 1 of slot 0. */
	edac_mc_handle_error(type, dev_get_drvdata(dev), count, 1, 0, 0, 0, -1, -1, "injected by a test", "");
	return length;
}

static ssize_t corrected_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t length)
{
	return report(dev, buf, length, HW_EVENT_ERR_CORRECTED);
}
static DEVICE_ATTR_WO(corrected);

static ssize_t uncorrected_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t length)
{
	return report(dev, buf, length, HW_EVENT_ERR_UNCORRECTED);
}
static DEVICE_ATTR_WO(uncorrected);

static struct attribute *lofamo_edac_attrs[] = {
	&dev_attr_corrected.attr,
	&dev_attr_uncorrected.attr,
	NULL,
};
ATTRIBUTE_GROUPS(lofamo_edac);

static int lofamo_edac_probe(struct platform_device *pdev)
{
	struct edac_mc_layer slots = { .type = EDAC_MC_LAYER_SLOT, .size = 1, .is_virt_csrow = true };
	struct mem_ctl_info *mci = edac_mc_alloc(0, 1, &slots, 0);
	struct dimm_info *dimm;
	int err;

	if (!mci)
		return -ENOMEM;
	mci->pdev = &pdev->dev;
	mci->mod_name = KBUILD_MODNAME;
	mci->ctl_name = "lofamo_edac";
	mci->dev_name = dev_name(&pdev->dev);
	mci->mtype_cap = MEM_FLAG_DDR4;
	mci->edac_ctl_cap = EDAC_FLAG_SECDED;
	mci->edac_cap = EDAC_FLAG_SECDED;

	dimm = edac_get_dimm(mci, 0, 0, 0);
	dimm->nr_pages = MODULE_PAGES;
	dimm->grain = 8;
	dimm->mtype = MEM_DDR4;
	dimm->dtype = DEV_X8;
	dimm->edac_mode = EDAC_SECDED;
	strscpy(dimm->label, "DIMM_A1", sizeof(dimm->label));

	err = edac_mc_add_mc_with_groups(mci, NULL);
	if (err) {
		edac_mc_free(mci);
		return err;
	}
	platform_set_drvdata(pdev, mci);
	return 0;
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
static int lofamo_edac_remove(struct platform_device *pdev)
{
	edac_mc_free(edac_mc_del_mc(&pdev->dev));
	return 0;
}
#else
static void lofamo_edac_remove(struct platform_device *pdev)
{
	edac_mc_free(edac_mc_del_mc(&pdev->dev));
}
#endif

static struct platform_driver lofamo_edac_driver = {
	.driver = { .name = "lofamo_edac", .dev_groups = lofamo_edac_groups },
	.probe = lofamo_edac_probe,
	.remove = lofamo_edac_remove,
};

static int __init lofamo_edac_init(void)
{
	int err = platform_driver_register(&lofamo_edac_driver);

	if (err)
		return err;
	controller = platform_device_register_simple("lofamo_edac", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(controller)) {
		platform_driver_unregister(&lofamo_edac_driver);
		return PTR_ERR(controller);
	}
	return 0;
}
module_init(lofamo_edac_init);

static void __exit lofamo_edac_exit(void)
{
	platform_device_unregister(controller);
	platform_driver_unregister(&lofamo_edac_driver);
}
module_exit(lofamo_edac_exit);

MODULE_DESCRIPTION("EDAC memory controller into which tests inject errors");
MODULE_LICENSE("GPL");
