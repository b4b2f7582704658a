/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym(RTLD_NEXT, ...) and dlsym(RTLD_DEFAULT, ...) depend on who calls: the loader looks at the return address. A C
 * wrapper would make every caller look like this library, so these two are passed on by a jump, which leaves the
 * caller's return address where it is. Ordinary handles go to hami_dlsym() (lookup.c).
 */
#if !defined(__x86_64__)
#error "dlsym.S: x86-64 only so far"
#endif
	.text
	.globl dlsym
	.type dlsym, @function
dlsym:
	.cfi_startproc
	endbr64
	leaq 1(%rdi), %rax /* RTLD_NEXT (-1) becomes 0, RTLD_DEFAULT (0) becomes 1 */
	cmpq $1, %rax
	ja hami_dlsym
	movq hami_real_dlsym(%rip), %rax
	testq %rax, %rax
	jz 1f
	jmp *%rax
1:
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	call hami_find_dlsym
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	jmp *%rax
	.cfi_endproc
	.size dlsym, .-dlsym
	.section .note.GNU-stack, "", @progbits
