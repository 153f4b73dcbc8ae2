// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The smallest EIP-1271 wallet: one owner, whose ECDSA signature over the digest is the wallet's.
/// @notice For tests of payers that are contracts. Accepts 65 bytes and ignores whatever follows them, as wallets
///         with longer signature formats do.
/// @dev Nothing is set at creation: the owner is planted in slot 0, or set once.
contract SmartTestWallet {
    address public owner; // slot 0

    bytes4 private constant ERC1271_MAGIC = 0x1626ba7e;
    bytes4 private constant ERC1271_REFUSED = 0xffffffff;

    function initialize(address newOwner) external {
        require(owner == address(0), "SmartTestWallet: already initialized");
        owner = newOwner;
    }

    function isValidSignature(bytes32 digest, bytes calldata signature) external view returns (bytes4) {
        if (signature.length < 65) return ERC1271_REFUSED;
        address signer =
            ecrecover(digest, uint8(signature[64]), bytes32(signature[0:32]), bytes32(signature[32:64]));
        return signer != address(0) && signer == owner ? ERC1271_MAGIC : ERC1271_REFUSED;
    }
}
