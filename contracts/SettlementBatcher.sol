// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Carries several signed EIP-3009 transfers of one token in one transaction.
/// @notice It holds nothing, owns nothing, has no administrator, keeps no state, takes no value and emits nothing: what
///         each transfer came to is read from the token's own events. One that fails harms no other. Anyone may call it,
///         since anyone may bring an authorization to the token.
/// @dev There is no selector: the calldata is the batch.
///        token 20 | gas of each item 4 | then per item, 155 bytes:
///        from 20 | to 20 | value 8 | validAfter 5 | validBefore 5 | nonce 32 | r 32 | s 32 | v 1
///      Each item is one transferWithAuthorization(.., v, r, s) with exactly that much gas and no more: a payer that is
///      a contract, or became one by EIP-7702, can burn its own share and no other's. If an item could not be given
///      its whole share the transaction reverts, so that too little gas never fails an item that is good.
contract SettlementBatcher {
    uint256 private constant HEAD_SIZE = 24;
    uint256 private constant ITEM_SIZE = 155;
    uint256 private constant CALL_SIZE = 292;
    uint256 private constant SELECTOR = 0xe3ee160e00000000000000000000000000000000000000000000000000000000;
    uint256 private constant CALL_RESERVE = 5000; // a cold account's 2,600, and this loop's own steps

    fallback() external {
        assembly ("memory-safe") {
            let end := calldatasize()
            if or(lt(end, add(HEAD_SIZE, ITEM_SIZE)), mod(sub(end, HEAD_SIZE), ITEM_SIZE)) { revert(0, 0) }
            let head := calldataload(0)
            let token := shr(96, head)
            let share := and(shr(64, head), 0xffffffff)
            // A call is given at most 63/64 of what is left (EIP-150).
            let needed := add(add(share, div(share, 63)), CALL_RESERVE)
            let call_ := mload(0x40)
            mstore(call_, SELECTOR)
            for { let item := HEAD_SIZE } lt(item, end) { item := add(item, ITEM_SIZE) } {
                let numbers := calldataload(add(item, 40))
                mstore(add(call_, 4), shr(96, calldataload(item)))
                mstore(add(call_, 36), shr(96, calldataload(add(item, 20))))
                mstore(add(call_, 68), shr(192, numbers))
                mstore(add(call_, 100), and(shr(152, numbers), 0xffffffffff))
                mstore(add(call_, 132), and(shr(112, numbers), 0xffffffffff))
                mstore(add(call_, 164), calldataload(add(item, 58)))
                mstore(add(call_, 196), byte(0, calldataload(add(item, 154))))
                mstore(add(call_, 228), calldataload(add(item, 90)))
                mstore(add(call_, 260), calldataload(add(item, 122)))
                if lt(gas(), needed) { revert(0, 0) }
                // Neither its success nor its answer is looked at: an answer of any length costs nothing here.
                pop(call(share, token, 0, call_, CALL_SIZE, 0, 0))
            }
        }
    }
}
